from itertools import combinations

import pytest

from cache.scope import Scope, Share


def scope(share: Share, tenant: str = "acme", user: str = "alice", *permissions: str) -> Scope:
    return Scope.of(share, tenant=tenant, user=user, permissions=frozenset(permissions))


ALICE = ("acme", "alice", "hr", "eng")


@pytest.mark.parametrize(
    ("share", "other", "shared"),
    [
        ("user", ("acme", "alice", "eng", "hr"), True),
        ("user", ("acme", "bob", "hr", "eng"), False),
        ("user", ("acme", "alice", "hr"), False),
        ("user", ("other", "alice", "hr", "eng"), False),
        ("permissions", ("acme", "bob", "eng", "hr"), True),
        ("permissions", ("acme", "alice", "hr"), False),
        ("permissions", ("acme", "alice", "hr", "eng", "x"), False),
        ("permissions", ("other", "alice", "hr", "eng"), False),
        ("tenant", ("acme", "bob"), True),
        ("tenant", ("other", "alice", "hr", "eng"), False),
        ("public", ("other", "bob"), True),
    ],
)
def test_who_shares_with_alice(share: Share, other: tuple[str, ...], shared: bool) -> None:
    one, two = scope(share, *ALICE), scope(share, *other)
    assert (one == two) == shared
    assert (one.digest() == two.digest()) == shared


def test_policies_never_share_a_partition() -> None:
    """Nothing but the policy differs: not even then."""
    shares: list[Share] = ["user", "permissions", "tenant", "public"]
    for one, other in combinations(shares, 2):
        assert scope(one, "", "").digest() != scope(other, "", "").digest()


def test_crafted_names_do_not_meet() -> None:
    crafted = [
        scope("permissions", "acme", "", "a", "b"),
        scope("permissions", "acme", "", "ab"),
        scope("permissions", "acme", "", "a,b"),
        scope("permissions", "acmea", "", "b"),
        scope("permissions", "acme", "", "", "a", "b"),
        scope("permissions", "ACME", "", "a", "b"),
        scope("permissions", "acme\x00", "", "a", "b"),
        scope("user", "acme", "alice"),
        scope("user", "acmealice", ""),
        scope("user", "", "acmealice"),
        scope("user", "acme", "", "alice"),
        scope("user", "acme", "", "", "alice"),
    ]
    assert len({one.digest() for one in crafted}) == len(crafted)


def test_pinned_vector() -> None:
    """Stored answers are found by this: it must never change by accident."""
    digest = scope("permissions", "acme", "alice", "hr", "eng").digest()
    assert digest.hex() == "6dedda3ed93558b611c0a2123f9c86eef077610ed4a59938766ca73afa027d92"
