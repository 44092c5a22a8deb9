"""Signing in to the dashboard: what the cookie opens and for how long, and what strangers' pages cannot do with it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dashboard import Person, person
from tests.support.gateway import ADMIN, ALICE, EVE, Clock, Running, config_text, running
from tests.support.traffic import error_of, outcome, until
from tests.support.upstream import Upstream

WEBAPP, SPARE = "rf-test-webapp-key", "rf-test-spare-key"
MORE = f"""
    - {{key: {WEBAPP}, tenant: acme, user: webapp, delegate: true, role: admin}}
    - {{key: {SPARE}, tenant: ops, user: spare, role: admin}}
"""
READS = (
    "/admin/stats",
    "/admin/decisions",
    "/admin/entries",
    "/admin/keys",
    "/admin/audit",
    "/admin/overview",
    "/metrics",
)
LIFE = 12 * 3600


def text(up: Upstream) -> str:
    return config_text(up.url).replace("\nendpoints:", f"{MORE}\nendpoints:", 1)


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    """One for each test: sign-ins that fail slow down those after them."""
    with running(text(up)) as gateway:
        yield gateway


@pytest.fixture
def ann(gw: Running) -> Iterator[Person]:
    """Signed in as an admin."""
    with person(gw) as somebody:
        yield somebody


# In and out


def test_a_key_with_the_role_against_a_cookie(gw: Running) -> None:
    with person(gw, None) as ann:
        assert ann.who() == {"signed_in": False, "required": True, "tenant": None, "user": None, "role": None}
        answer = ann.sign_in()
        assert (answer.status_code, answer.content) == (204, b"")
        assert answer.headers["cache-control"] == "private, no-store"
        first, *attributes = answer.headers["set-cookie"].split("; ")
        assert first == f"refrain_session={ann.cookie}"
        assert attributes == [f"Max-Age={LIFE}", "Path=/", "HttpOnly", "SameSite=Strict"]
        assert ADMIN not in str(answer.headers)
        assert ann.who() == {"signed_in": True, "required": True, "tenant": "ops", "user": "root", "role": "admin"}


def test_over_https_the_cookie_is_for_https_only(gw: Running) -> None:
    """TLS ends at a proxy: the browser's own word says what it sees."""
    with person(gw, None) as ann:
        host = gw.url.removeprefix("http://")
        headers = {"origin": f"https://{host}"}
        answer = ann.ask("POST", "/dashboard/session", json={"key": ADMIN}, headers=headers)
        assert answer.headers["set-cookie"].endswith("; Secure")


@pytest.mark.parametrize("path", READS)
def test_the_cookie_opens_what_the_page_reads(ann: Person, path: str) -> None:
    assert ann.ask("GET", path).status_code == 200


def test_signing_out_ends_it(gw: Running, ann: Person) -> None:
    with person(gw) as elsewhere:
        answer = ann.ask("DELETE", "/dashboard/session")
        assert answer.status_code == 204
        assert answer.headers["set-cookie"].startswith("refrain_session=; Max-Age=0; Path=/")
        assert ann.who()["signed_in"] is False  # with the value that it had
        assert error_of(ann.ask("GET", "/admin/stats"), 401)["code"] == "session_ended"
        assert elsewhere.who()["signed_in"] is True
        assert ann.ask("DELETE", "/dashboard/session").status_code == 204  # a second time, or with nothing


def test_signing_in_again_ends_the_session_before(ann: Person) -> None:
    former = ann.cookie
    assert ann.sign_in(EVE).status_code == 204
    assert ann.who()["tenant"] == "globex"
    ann.cookie = former
    assert ann.who()["signed_in"] is False


def test_it_lives_twelve_hours(gw: Running, ann: Person) -> None:
    gw.clock.offset += LIFE - 60
    assert ann.who()["signed_in"] is True  # to use it does not make it longer
    gw.clock.offset += 61
    assert ann.who()["signed_in"] is False
    assert error_of(ann.ask("GET", "/admin/stats"), 401)["code"] == "session_ended"


def test_it_ends_with_the_process(up: Upstream) -> None:
    with running(text(up)) as first, person(first) as ann, running(text(up)) as second, person(second, None) as again:
        again.cookie = ann.cookie
        assert ann.who()["signed_in"] is True
        assert again.who()["signed_in"] is False


# Who gets none


@pytest.mark.parametrize("key", ["rf-wrong", "é", "a b", "x" * 3000, "e30.e30.e30", f"{ADMIN}x", f"Bearer {ADMIN}"])
def test_a_key_that_is_none(gw: Running, key: str) -> None:
    with person(gw, None) as eve:
        answer = eve.sign_in(key)
        assert error_of(answer, 401)["code"] == "invalid_api_key"
        assert "set-cookie" not in answer.headers


def test_a_member_is_told_what_is_missing(gw: Running) -> None:
    with person(gw, None) as alice:
        answer = alice.sign_in(ALICE)
        error = error_of(answer, 403)
        assert error["code"] == "forbidden"
        assert "`member`" in error["message"]
        assert "set-cookie" not in answer.headers


def test_a_sign_in_that_cannot_be_read(gw: Running) -> None:
    bodies = [b"", b"{}", b"[]", b'"k"', b'{"key": null}', b'{"key": 1}', b'{"key": ""}', b'{"key": " "}', b"key=a"]
    bodies += [b'{"key": "a", "role": "admin"}', b'{"key": "a", "key": "b"}', b'{"key": "\\ud800"}', b"\xff"]
    with person(gw, None) as eve:
        for body in bodies:
            error_of(eve.ask("POST", "/dashboard/session", content=body), 400)
        for size in (5_000, 90_000):
            large = b'{"key": "%s"}' % (b"x" * size)
            assert error_of(eve.ask("POST", "/dashboard/session", content=large), 413)["code"] == "request_too_large"
        # Beyond that it is not even read.
        error_of(eve.ask("POST", "/dashboard/session", content=b"x" * 200_000), 401)


def test_neither_keys_nor_cookies_are_logged(gw: Running, capfd: pytest.CaptureFixture[str]) -> None:
    with person(gw, None) as ann:
        assert ann.sign_in("rf-a-wrong-secret").status_code == 401
        assert ann.sign_in(ALICE).status_code == 403
        assert ann.sign_in().status_code == 204
        assert ann.ask("POST", "/admin/purge", json={"older_than": "0s"}).status_code == 200
        shown = "".join(capfd.readouterr())
        assert "signed in" in shown
        assert "sign-in refused" in shown
        for secret in ("rf-a-wrong-secret", ALICE, ADMIN, ann.cookie):
            assert str(secret) not in shown


# What ends a session from outside


def test_a_revoked_key_ends_its_sessions_at_once(gw: Running, ann: Person) -> None:
    with person(gw, SPARE) as spare:
        (known,) = [k for k in ann.ask("GET", "/admin/keys").json()["keys"] if k["user"] == "spare"]
        assert spare.ask("GET", "/admin/stats").status_code == 200
        assert ann.ask("POST", "/admin/keys/revoke", json={"id": known["id"]}).status_code == 200
        assert error_of(spare.ask("GET", "/admin/stats"), 401)["code"] == "session_ended"
        assert error_of(spare.sign_in(SPARE), 401)["code"] == "invalid_api_key"
        assert ann.who()["signed_in"] is True


def test_a_reload_ends_the_sessions_of_keys_that_it_takes_away(up: Upstream, tmp_path: Path) -> None:
    """Those of the others go on, with what their keys may do now. A key that comes back does not bring them back."""
    path = tmp_path / "refrain.yaml"
    with running(text(up), path=path, clock=Clock()) as gw, person(gw) as ann, person(gw, SPARE) as spare:
        path.write_text(text(up).replace("user: spare, role: admin", "user: spare, role: tenant_admin"))
        until(lambda: spare.who()["role"] == "tenant_admin")
        assert error_of(spare.ask("GET", "/metrics"), 403)["code"] == "forbidden"
        path.write_text(text(up).replace("user: spare, role: admin", "user: spare"))
        until(lambda: not spare.who()["signed_in"])
        assert error_of(spare.ask("GET", "/admin/stats"), 403)["code"] == "forbidden"
        path.write_text(text(up).replace(SPARE, "rf-another-key"))
        until(lambda: spare.ask("GET", "/admin/stats").status_code == 401)
        path.write_text(text(up))
        until(lambda: gw.admin("GET", "/admin/stats", key=SPARE).status_code == 200)
        assert spare.who()["signed_in"] is False
        assert ann.who()["signed_in"] is True


# What the cookie is not


def test_it_opens_nothing_under_v1(gw: Running, ann: Person) -> None:
    body = {"model": "test-model", "messages": [{"role": "user", "content": "Hello?"}]}
    for path in ("/v1/chat/completions", "/personal/v1/chat/completions", "/v1/completions"):
        error_of(ann.ask("POST", path, json=body), 401)
    for path in ("/v1/models", "/rr/v1/models", "/v1/models/test-model"):
        error_of(ann.ask("GET", path), 401)
    # Nor on the short way, once the same bytes were answered to somebody.
    for _ in range(3):
        assert outcome(gw.chat("Hello?")) in ("miss", "exact")
    error_of(ann.ask("POST", "/v1/chat/completions", json=body), 401)


def test_its_value_is_no_key(gw: Running, ann: Person) -> None:
    assert ann.cookie is not None
    for headers in ({"authorization": f"Bearer {ann.cookie}"}, {"x-api-key": ann.cookie}):
        for path in ("/admin/stats", "/v1/models"):
            assert error_of(gw.client.get(path, headers=headers), 401)["code"] == "invalid_api_key"


def test_a_key_is_no_cookie(gw: Running) -> None:
    with person(gw, None) as eve:
        for value in (ADMIN, "", "x", "a" * 5000, '"', "null", "undefined", "../.."):
            eve.cookie = value
            error_of(eve.ask("GET", "/admin/stats"), 401)


def test_credentials_that_are_sent_count_and_not_the_cookie(ann: Person) -> None:
    for header in ("authorization", "x-api-key"):
        value = "Bearer {}" if header == "authorization" else "{}"
        assert ann.ask("GET", "/admin/stats", headers={header: value.format("rf-wrong")}).status_code == 401
        assert ann.ask("GET", "/admin/stats", headers={header: value.format(ALICE)}).status_code == 403
        assert ann.ask("GET", "/admin/keys", headers={header: value.format(EVE)}).json()["keys"][0]["user"] == "eve"
    # What a browser sends to a proxy in front is none of ours: it opens nothing, and is in nobody's way.
    basic = {"authorization": "Basic cm9vdDpyb290"}
    assert ann.ask("GET", "/admin/stats", headers=basic).status_code == 200
    assert ann.ask("GET", "/v1/models", headers=basic).status_code == 401
    ann.cookie = None
    assert ann.ask("GET", "/admin/stats", headers=basic).status_code == 401


def test_a_tenant_admin_has_its_own_tenant_by_cookie_too(gw: Running) -> None:
    gw.chat("For acme?")
    gw.chat("For globex?", key=EVE)
    with person(gw, EVE) as eve:
        assert {e["tenant"] for e in eve.ask("GET", "/admin/entries").json()["entries"]} == {"globex"}
        assert {d["tenant"] for d in eve.ask("GET", "/admin/decisions").json()["decisions"]} == {"globex"}
        assert {k["tenant"] for k in eve.ask("GET", "/admin/keys").json()["keys"]} == {"globex"}
        error_of(eve.ask("GET", "/admin/entries", params={"tenant": "acme"}), 403)
        error_of(eve.ask("POST", "/admin/purge", json={"tenant": "acme"}), 403)
        error_of(eve.ask("GET", "/metrics"), 403)
        assert eve.ask("POST", "/admin/purge", json={"older_than": "0s"}).json() == {"purged": 1}


def test_a_delegating_key_signs_in_as_itself(gw: Running) -> None:
    with person(gw, WEBAPP) as app:
        assert app.ask("GET", "/admin/stats", headers={"x-refrain-on-behalf": "user=ann"}).status_code == 200
        assert app.who()["user"] == "webapp"


# Other people's pages


def _foreign(gw: Running) -> dict[str, dict[str, str]]:
    """What a browser says about requests that other pages make, by where these are."""
    port = int(gw.url.rpartition(":")[2])
    return {
        "another site": {"sec-fetch-site": "cross-site", "origin": "https://evil.example"},
        "another site, old browser": {"origin": "https://evil.example"},
        "another port of this host": {"sec-fetch-site": "same-site", "origin": f"http://127.0.0.1:{port + 1}"},
        "another port, old browser": {"origin": f"http://127.0.0.1:{port + 1}"},
        "another name of this host": {"sec-fetch-site": "cross-site", "origin": f"http://localhost:{port}"},
        "another name, old browser": {"origin": f"http://localhost:{port}"},
        "a page without an origin": {"sec-fetch-site": "cross-site", "origin": "null"},
        "a file, old browser": {"origin": "null"},
        "a name that begins like ours": {"origin": f"{gw.url}.evil.example"},
        "the plain page of a TLS host": {"sec-fetch-site": "cross-site", "origin": gw.url},
    }


WRITES = {
    "/admin/purge": {"older_than": "0s"},
    "/admin/keys/revoke": {"id": "0" * 12},
    "/admin/feedback": {"request_id": "x", "correct": False},
}


def test_other_pages_change_nothing(gw: Running, ann: Person) -> None:
    gw.chat("Still there?")
    said = {**_foreign(gw), "nothing at all": {}, "typed by hand": {"sec-fetch-site": "none"}}
    for where, headers in said.items():
        for path, body in WRITES.items():
            answer = ann.bare("POST", path, json=body, headers=headers)
            assert error_of(answer, 403)["code"] == "cross_origin", where
        # What a form can send without being asked about it before.
        text_plain = {**headers, "content-type": "text/plain"}
        error_of(ann.bare("POST", "/admin/purge", content=b'{"older_than": "0s"}', headers=text_plain), 403)
        error_of(ann.bare("DELETE", "/dashboard/session", headers=headers), 403)
    assert ann.who()["signed_in"] is True
    assert outcome(gw.chat("Still there?")) == "exact"
    assert gw.admin("GET", "/admin/audit").json()["lines"] == []


def test_other_pages_read_nothing(gw: Running, ann: Person) -> None:
    gw.chat("A secret?", model="secret-model")
    for where, headers in _foreign(gw).items():
        for path in (*READS, "/admin/live"):
            answer = ann.bare("GET", path, headers=headers)
            assert error_of(answer, 403)["code"] == "cross_origin", (where, path)
            assert "secret-model" not in answer.text
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        assert ann.bare("GET", "/dashboard/session", headers=headers).json()["signed_in"] is False


def test_no_page_is_ever_let_in_by_a_preflight(gw: Running, ann: Person) -> None:
    asked = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for path in ("/admin/purge", "/admin/stats", "/dashboard/session"):
        answer = ann.bare("OPTIONS", path, headers=asked)
        assert answer.status_code == 405
        assert not [name for name in answer.headers if name.startswith("access-control-")]


def test_nobody_is_signed_in_by_another_page(gw: Running) -> None:
    """As somebody else, that is: whoever lets people look at a stranger's figures can show them what they like."""
    with person(gw, None) as ann:
        for where, headers in _foreign(gw).items():
            answer = ann.bare("POST", "/dashboard/session", json={"key": EVE}, headers=headers)
            assert error_of(answer, 403)["code"] == "cross_origin", where
            assert "set-cookie" not in answer.headers


def test_what_the_page_itself_says_is_enough(gw: Running, ann: Person) -> None:
    host = gw.url.removeprefix("http://")
    for headers in (
        {"origin": gw.url},
        {"origin": f"https://{host}"},
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "same-origin", "origin": "https://outer.example"},
    ):
        answer = ann.bare("POST", "/admin/purge", json={"older_than": "1d", "dry_run": True}, headers=headers)
        assert answer.status_code == 200, headers
    for headers in ({}, {"sec-fetch-site": "none"}, {"sec-fetch-site": "same-origin"}):
        assert ann.bare("GET", "/admin/stats", headers=headers).status_code == 200, headers


def test_a_key_needs_no_page(gw: Running) -> None:
    """The admin API of programs is as it was, with whatever origin they say."""
    headers = {"authorization": f"Bearer {ADMIN}", "origin": "https://tool.example", "sec-fetch-site": "cross-site"}
    assert gw.client.get("/admin/stats", headers=headers).status_code == 200
    assert gw.client.post("/admin/purge", json={"older_than": "0s"}, headers=headers).status_code == 200


# Without keys


@pytest.fixture
def open_gw(up: Upstream) -> Iterator[Running]:
    whole = config_text(up.url)
    begin, end = whole.index("\nauth:"), whole.index("\nendpoints:")
    with running(whole[:begin] + "\nauth: {required: false}" + whole[end:]) as gateway:
        yield gateway


def test_where_no_key_is_needed_nobody_signs_in(open_gw: Running) -> None:
    with person(open_gw, None) as ann:
        known = {"signed_in": True, "required": False, "tenant": "default", "user": "anonymous", "role": "admin"}
        assert ann.who() == known
        assert ann.ask("GET", "/admin/stats").status_code == 200
        answer = ann.sign_in("anything")
        assert answer.status_code == 204
        assert "set-cookie" not in answer.headers
        ann.cookie = "of-another-gateway"
        assert ann.who() == known
        assert ann.ask("POST", "/admin/purge", json={"older_than": "0s"}).status_code == 200


@pytest.mark.parametrize(
    "headers", [{"host": "evil.example"}, {"origin": "https://evil.example"}, {"origin": "null"}], ids=str
)
def test_where_no_key_is_needed_other_peoples_pages_get_nothing(open_gw: Running, headers: dict[str, str]) -> None:
    """A name of theirs that leads here (Host), or a page of theirs that asks (Origin)."""
    with person(open_gw, None) as eve:
        for path in (*READS, "/admin/live", "/dashboard/session"):
            assert error_of(eve.bare("GET", path, headers=headers), 403)["code"] == "not_local", path
        for path in (*WRITES, "/dashboard/session"):
            error_of(eve.bare("POST", path, json={"key": "x"}, headers=headers), 403)
