"""Output files are lines of JSON, whatever the answers in them look like."""

import json
from collections.abc import Iterator

import pytest

from gateway.batch.records import Url
from tests.support.batches import CHAT, EMBEDDINGS, MODEL, TEXT, Json, Lane, chat_line, lane, lane_config, line
from tests.support.gateway import Running, running
from tests.support.traffic import fixed
from tests.support.upstream import Reply, Seen, Upstream, numbered

ASKED: dict[Url, Json] = {
    CHAT: {"messages": [{"role": "user", "content": "?"}]},
    TEXT: {"prompt": "Once"},
    EMBEDDINGS: {"input": ["once", "upon"]},
}


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"))) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


@pytest.mark.parametrize("endpoint", ["", "rr"], ids=["stream", "request_response"])
@pytest.mark.parametrize("url", ASKED, ids=["chat", "completions", "embeddings"])
def test_a_result_is_one_line_however_its_answer_is_spelt(gw: Running, up: Upstream, endpoint: str, url: Url) -> None:
    """OpenAI's own answers have many lines."""

    def script(seen: Seen, number: int) -> Reply:
        reply = numbered(seen, number)
        if not seen.body.get("stream"):
            reply.pieces = [json.dumps(json.loads(b"".join(reply.pieces)), indent=2).replace("\n", "\r\n").encode()]
        return reply

    up.script = script
    with lane(gw, endpoint=endpoint) as alice:
        batch = alice.run([line("one", url, **ASKED[url])], url=url)
        content = alice.content(str(batch.output_file_id))
        assert (content.count(b"\n"), content.count(b"\r")) == (1, 0)
        assert alice.answers(batch)["one"]["response"]["body"]["model"] == MODEL


def test_an_error_is_one_line_too(alice: Lane, up: Upstream, prompt: str) -> None:
    refusal = json.dumps({"error": {"message": "No.\nNever.", "code": "no"}}, indent=2).encode()
    up.script = fixed(Reply([refusal], status=400))
    batch = alice.run([chat_line("one", prompt)])
    assert alice.content(str(batch.error_file_id)).count(b"\n") == 1
    assert alice.failures(batch)["one"]["response"]["body"]["error"]["code"] == "no"
