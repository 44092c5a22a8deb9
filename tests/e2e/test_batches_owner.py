"""A batch runs as whoever made it: with its limits, its permissions, and no longer than its key is good."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.config.keys import digest_key
from tests.support.batches import Lane, at, chat_line, chat_lines, counts, lane, lane_config, prompt_of
from tests.support.gateway import Running, running
from tests.support.issuer import AUDIENCE, issuer
from tests.support.traffic import until, upstream_calls
from tests.support.upstream import Reply, Seen, Upstream, numbered

LEE, TWIN, GONE, WEBAPP = (f"rf-test-{name}-key" for name in ("lee", "twin", "gone", "webapp"))
KEYS = f"""
    - {{key: {LEE}, tenant: acme, user: lee, permissions: [hr], limits: {{requests: 8/s}}}}
    - {{key: {TWIN}, tenant: acme, user: lee}}
    - {{key: {GONE}, tenant: acme, user: lee}}
    - {{key: {WEBAPP}, tenant: acme, user: webapp, permissions: [hr, eng], delegate: true}}
"""
EXTRA = """
  hr_only: {mode: request_response, allow: {tenants: [acme], permissions: [hr]}}
"""


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"), keys=KEYS, extra=EXTRA)) as gateway:
        yield gateway


@pytest.fixture
def twin(gw: Running) -> Iterator[Lane]:
    """The same user by a key without limits: it looks without using any up."""
    with lane(gw, key=TWIN) as found:
        yield found


def gated(up: Upstream) -> threading.Event:
    """From now on the upstream answers nobody before this is set."""
    gate = threading.Event()

    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        reply.gates = {0: gate}
        return reply

    up.script = script
    return gate


@pytest.mark.slow
def test_a_limit_that_is_used_up_is_waited_for(gw: Running, twin: Lane, up: Upstream, prompt: str) -> None:
    times: list[float] = []

    def script(seen: Seen, number: int) -> Reply:
        times.append(time.monotonic())
        return numbered(seen, number)

    up.script = script
    with lane(gw, key=LEE) as lee, upstream_calls(up, 20):
        batch = twin.ended(lee.start(chat_lines(prompt, 20)).id)
    assert (batch.status, counts(batch)) == ("completed", (20, 20, 0))
    assert times[-1] - times[0] > 1  # three windows of eight, of which two requests were the upload and the batch


def test_people_behind_one_key_have_batches_of_their_own(gw: Running, prompt: str) -> None:
    with lane(gw, endpoint="hr_only", key=WEBAPP) as app:
        ann = Lane(app.client.with_options(default_headers={"x-refrain-on-behalf": "user=ann; permissions=hr"}))
        ben = Lane(app.client.with_options(default_headers={"x-refrain-on-behalf": "user=ben; permissions=hr"}))
        batch = ann.run([chat_line("one", prompt)])
        assert [found.id for found in ann.client.batches.list()] == [batch.id]
        assert ben.client.batches.list().data == []
        assert app.client.batches.list().data == []
        id = ann.answers(batch)["one"]["response"]["request_id"]
    assert gw.admin("GET", "/admin/decisions", params={"id": id}).json()["user"] == "ann"


def test_whoever_may_not_use_an_endpoint_has_no_batch_there(gw: Running, up: Upstream, prompt: str) -> None:
    with lane(gw, key=TWIN) as lee:
        file = lee.upload(b"{}")
    head = {"authorization": f"Bearer {TWIN}"}
    body = {"input_file_id": file.id, "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    with upstream_calls(up, 0):
        assert gw.client.post("/hr_only/v1/batches", json=body, headers=head).status_code == 403
        assert gw.client.get("/hr_only/v1/files", headers=head).status_code == 403
        assert gw.client.post("/nowhere/v1/batches", json=body, headers=head).status_code == 404


def test_what_is_left_when_a_key_is_revoked_fails(gw: Running, twin: Lane, up: Upstream, prompt: str) -> None:
    """What has begun ends well."""
    gate = gated(up)
    with lane(gw, key=GONE) as lee:
        id = lee.start(chat_lines(prompt, 40)).id
        until(lambda: up.open == 32)
        began = {f"c{prompt_of(seen).rsplit(' ', 1)[1]}" for seen in up.seen[-32:]}
        assert gw.admin("POST", "/admin/keys/revoke", json={"id": digest_key(GONE).hex()}).status_code == 200
        gate.set()
    batch = twin.ended(id)
    assert batch.status == "completed"
    assert counts(batch) == (40, 32, 8)
    assert twin.answers(batch).keys() == began
    for failure in twin.failures(batch).values():
        response = failure["response"]
        assert (response["status_code"], response["body"]["error"]["code"]) == (401, "invalid_api_key")


def test_a_permission_that_is_taken_away_ends_with_it(up: Upstream, tmp_path: Path) -> None:
    """By the configuration as it is, not as it was when the batch was made."""
    path, text = tmp_path / "refrain.yaml", lane_config(up, tmp_path, extra=EXTRA)
    gate = gated(up)
    with running(text, path=path) as gw, lane(gw, endpoint="hr_only") as alice, lane(gw) as same:
        id = alice.start(chat_lines("Paid?", 40)).id
        until(lambda: up.open == 32)
        path.write_text(text.replace("user: alice, permissions: [hr]", "user: alice, permissions: [eng]"))
        only = {"cache-control": "only-if-cached"}
        until(lambda: gw.chat("Paid?", path="/hr_only/v1", headers=only).status_code == 403)
        gate.set()
        batch = same.ended(id)
        assert counts(batch) == (40, 32, 8)
        assert {result["response"]["status_code"] for result in same.failures(batch).values()} == {403}


def test_who_came_by_a_token_that_is_over_by_now(up: Upstream, tmp_path: Path) -> None:
    with issuer() as idp:
        idp.add("es")
        jwt = f'  jwt: {{jwks_url: "{idp.jwks_url}", issuer: "{idp.url}", audience: {AUDIENCE}, tenant: org_id}}'
        text = lane_config(up, tmp_path).replace("\nendpoints:", f"\n{jwt}\nendpoints:", 1)
        gate = gated(up)
        with running(text) as gw:
            with lane(gw, key=idp.token().decode()) as early:
                id = early.start(chat_lines("Still?", 40)).id
                until(lambda: up.open == 32)
            gw.clock.offset = 3_600
            gate.set()
            with lane(gw, key=idp.token(gw.clock()).decode()) as late:
                assert counts(late.ended(id)) == (40, 40, 0)
            with lane(gw, key=idp.token(gw.clock(), sub="u2").decode()) as other:
                assert other.client.batches.list().data == []


def test_without_keys_everybody_is_one(up: Upstream, tmp_path: Path) -> None:
    text = f"""
backends: {{fake: {{kind: remote, base_url: "{up.url}"}}}}
models: {{"*": fake}}
store: {{url: "{at(tmp_path)}"}}
auth: {{required: false}}
"""
    gate = gated(up)
    with running(text) as gw, lane(gw, key="anything") as anybody:
        id = anybody.start(chat_lines("Open?", 3)).id
        until(lambda: up.open == 3)
    gate.set()
    with running(text) as gw, lane(gw, key="something") as anybody:
        assert counts(anybody.ended(id)) == (3, 3, 0)
