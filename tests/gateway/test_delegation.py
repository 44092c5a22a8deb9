"""`x-refrain-on-behalf`: whom a delegating key speaks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import ApiError
from gateway.principal import MAX_USER, Principal, on_behalf

WEBAPP = Principal("acme", "webapp", frozenset({"hr", "finance"}), "admin")


@pytest.mark.parametrize(
    ("header", "user", "permissions"),
    [
        ("user=u123; permissions=hr,eng", "u123", {"hr"}),
        ("user=u123; permissions=finance,hr", "u123", {"hr", "finance"}),
        ("permissions=hr;user=u123", "u123", {"hr"}),
        ("USER=u123;Permissions= hr , eng ,", "u123", {"hr"}),
        ("user=u123", "u123", set()),
        ("user=u123; permissions=", "u123", set()),
        ("user=u123; permissions=*", "u123", set()),
        ("user=u123; permissions=HR", "u123", set()),
        ("user=alice@example.com;", "alice@example.com", set()),
        ("user=a=b", "a=b", set()),
        ("user=Zoë", "Zoë", set()),
        ("user=" + "x" * MAX_USER, "x" * MAX_USER, set()),
    ],
)
def test_it_is_a_user_of_the_same_tenant_with_no_more_than_the_key_has(
    header: str, user: str, permissions: set[str]
) -> None:
    assert on_behalf(WEBAPP, header.encode()) == Principal("acme", user, frozenset(permissions), "member")


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b";",
        b"u123",
        b"user=",
        b"user= ; permissions=hr",
        b"permissions=hr",
        b"user=a; user=b",
        b"user=a; tenant=globex",
        b"user=a; role=admin",
        b"user=a; permissions=hr; permissions=finance",
        b"user=a, user=b",  # two headers, joined
        b"user=a; permissions=hr, user=b; permissions=finance",
        b"user=a\x00b",
        b"user=a\xc2\xadb",  # a soft hyphen: two names that look the same
        b"user=\xff",
        b"user=" + b"x" * (MAX_USER + 1),
    ],
)
def test_what_cannot_be_read_is_refused_and_names_the_header(header: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        on_behalf(WEBAPP, header)
    assert (caught.value.status, caught.value.param) == (400, "x-refrain-on-behalf")


@given(st.binary(max_size=80) | st.text(max_size=40).map(lambda t: f"user={t}; permissions=hr,{t}".encode()))
def test_no_header_leads_out_of_the_tenant_or_to_more_rights(header: bytes) -> None:
    try:
        found = on_behalf(WEBAPP, header)
    except ApiError:
        return
    assert (found.tenant, found.role) == ("acme", "member")
    assert found.permissions <= WEBAPP.permissions
    assert found.user
