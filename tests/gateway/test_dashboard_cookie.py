"""Is a request that carries the cookie one of the dashboard's own page?"""

import pytest

from gateway.dashboard.cookie import from_own_page, read_cookie, set_cookie

HOST = {b"host": b"gate.example:8080"}


@pytest.mark.parametrize(
    ("headers", "reads", "writes"),
    [
        # What a browser says about itself decides.
        ({"sec-fetch-site": "same-origin"}, True, True),
        ({"sec-fetch-site": "none"}, True, False),
        ({"sec-fetch-site": "same-site"}, False, False),
        ({"sec-fetch-site": "cross-site"}, False, False),
        ({"sec-fetch-site": ""}, False, False),
        ({"sec-fetch-site": "Same-Origin"}, False, False),
        ({"sec-fetch-site": "same-origin, cross-site"}, False, False),
        ({"sec-fetch-site": "cross-site", "origin": "http://gate.example:8080"}, False, False),
        ({"sec-fetch-site": "same-site", "origin": "http://gate.example:8080"}, False, False),
        ({"sec-fetch-site": "same-origin", "origin": "https://outer.example"}, True, True),  # a proxy changes Host
        # An old one says where the page came from.
        ({}, True, False),
        ({"origin": "http://gate.example:8080"}, True, True),
        ({"origin": "https://gate.example:8080"}, True, True),  # TLS ends at a proxy
        ({"origin": "http://GATE.example:8080"}, True, True),
        ({"origin": "http://gate.example"}, False, False),
        ({"origin": "http://gate.example:8081"}, False, False),
        ({"origin": "http://evil.gate.example:8080"}, False, False),
        ({"origin": "http://gate.example:8080.evil.example"}, False, False),
        ({"origin": "http://evil.example"}, False, False),
        ({"origin": "null"}, False, False),
        ({"origin": ""}, False, False),
        ({"origin": "gate.example:8080"}, False, False),
        ({"origin": "file://gate.example:8080"}, False, False),
        ({"origin": "http://gate.example:8080, http://evil.example"}, False, False),
    ],
    ids=str,
)
def test_whose_page_it_is(headers: dict[str, str], reads: bool, writes: bool) -> None:
    sent = HOST | {name.encode(): value.encode() for name, value in headers.items()}
    assert from_own_page("GET", sent) is from_own_page("HEAD", sent) is reads
    assert [from_own_page(method, sent) for method in ("POST", "DELETE", "PUT", "get")] == [writes] * 4


def test_without_a_host_nothing_is_its_own() -> None:
    assert not from_own_page("POST", {b"origin": b"http://"})
    assert not from_own_page("POST", {b"origin": b"null"})


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("refrain_session=abc", "abc"),
        ("theme=dark; refrain_session=abc; other=1", "abc"),
        ("theme=dark;refrain_session=a=b", "a=b"),
        ("refrain_session=", None),
        ("refrain_session", None),
        ("xrefrain_session=abc", None),
        ("refrain_session2=abc", None),
        ("x=refrain_session=abc", None),
        ("", None),
        (";;=;", None),
    ],
)
def test_reading_the_cookie(header: str, value: str | None) -> None:
    assert read_cookie({b"cookie": header.encode()}) == value


def test_a_cookie_of_odd_bytes_is_only_a_wrong_one() -> None:
    assert read_cookie({b"cookie": b"refrain_session=\xff\xfe"}) == "\xff\xfe"


def test_the_cookie_is_for_https_where_the_browser_sees_https() -> None:
    plain = set_cookie("v", 60, {b"origin": b"http://gate.example"})
    assert plain == "refrain_session=v; Max-Age=60; Path=/; HttpOnly; SameSite=Strict"
    assert set_cookie("v", 60, {b"origin": b"https://gate.example"}) == f"{plain}; Secure"
    assert set_cookie("v", 60, {}) == plain
