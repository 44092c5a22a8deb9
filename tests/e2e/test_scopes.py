"""`share`: who may see whose answer."""

from collections.abc import Iterator

import pytest

from tests.support.gateway import Running, config_text, running
from tests.support.traffic import outcome, text_of, upstream_calls
from tests.support.upstream import Upstream

# Two tenants; in the first, users of equal, of other, and of reordered permissions.
PEOPLE = """
auth:
  keys:
    - {key: rf-ann, tenant: acme, user: ann, permissions: [hr, finance]}
    - {key: rf-ann-2, tenant: acme, user: ann, permissions: [finance, hr]}
    - {key: rf-ann-less, tenant: acme, user: ann, permissions: [hr]}
    - {key: rf-ben, tenant: acme, user: ben, permissions: [finance, hr]}
    - {key: rf-cat, tenant: acme, user: cat, permissions: [hr]}
    - {key: rf-dan, tenant: acme, user: dan}
    - {key: rf-eve, tenant: globex, user: ann, permissions: [hr, finance]}
    - {key: rf-root, tenant: acme, user: root, permissions: [hr, finance], role: admin}
"""
EVERYONE = ("rf-ann", "rf-ann-2", "rf-ann-less", "rf-ben", "rf-cat", "rf-dan", "rf-eve", "rf-root")


@pytest.fixture(scope="module")
def gw(up: Upstream) -> Iterator[Running]:
    text = config_text(up.url)
    begin, end = text.index("\nauth:"), text.index("\nendpoints:")
    with running(text[:begin] + PEOPLE + text[end:]) as gateway:
        yield gateway


@pytest.mark.parametrize(
    ("path", "groups"),
    [
        (
            "/personal/v1",
            [{"rf-ann", "rf-ann-2"}, {"rf-ann-less"}, {"rf-ben"}, {"rf-cat"}, {"rf-dan"}, {"rf-eve"}, {"rf-root"}],
        ),
        (
            "/permitted/v1",
            [{"rf-ann", "rf-ann-2", "rf-ben", "rf-root"}, {"rf-ann-less", "rf-cat"}, {"rf-dan"}, {"rf-eve"}],
        ),
        ("/rr/v1", [set(EVERYONE) - {"rf-eve"}, {"rf-eve"}]),
        ("/v1", [set(EVERYONE) - {"rf-eve"}, {"rf-eve"}]),
        ("/everyone/v1", [set(EVERYONE)]),
    ],
    ids=["user", "permissions", "tenant", "default is tenant", "public"],
)
@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
def test_who_shares_with_whom(
    gw: Running, up: Upstream, prompt: str, path: str, groups: list[set[str]], stream: bool
) -> None:
    """Everybody asks the same twice; whoever got the same answer is one group."""
    with upstream_calls(up, len(groups)):
        first = {key: text_of(gw.chat(prompt, key=key, path=path, stream=stream)) for key in EVERYONE}
        again = {key: text_of(gw.chat(prompt, key=key, path=path, stream=stream)) for key in EVERYONE}
    assert first == again
    found = [{k for k in EVERYONE if first[k] == text} for text in dict.fromkeys(first.values())]
    assert sorted(map(sorted, found)) == sorted(map(sorted, groups))


def test_only_if_cached_shows_nothing_of_another_scope(gw: Running, prompt: str) -> None:
    outcome(gw.chat(prompt, key="rf-ann", path="/personal/v1"))
    asked = {"cache-control": "only-if-cached"}
    for key in ("rf-ben", "rf-eve", "rf-root", "rf-ann-less"):
        assert gw.chat(prompt, key=key, path="/personal/v1", headers=asked).status_code == 504
    assert outcome(gw.chat(prompt, key="rf-ann-2", path="/personal/v1", headers=asked)) == "exact"
