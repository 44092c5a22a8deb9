"""Files and batches as their owner has them, with the official client: lines, uploads, batches that are waited for, and
what came of each line."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from openai.types import Batch, FileObject

from gateway.batch.records import ENDED, Url
from tests.support.gateway import ALICE, Running, config_text
from tests.support.traffic import until
from tests.support.upstream import Reply, Script, Seen, Upstream, numbered

Json = dict[str, Any]
MODEL = "test-model"
CHAT: Url = "/v1/chat/completions"
TEXT: Url = "/v1/completions"
EMBEDDINGS: Url = "/v1/embeddings"
TOKENS = (11, 7)
"""In and out, of each chat answer of the scripted upstream."""
DAY = 86_400


def line(custom_id: str, url: str, **body: Any) -> Json:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": MODEL, **body}}


def chat_line(custom_id: str, content: str, **more: Any) -> Json:
    """The same request as `Running.chat(content)` sends."""
    return line(custom_id, CHAT, messages=[{"role": "user", "content": content}], **more)


def chat_lines(prompt: str, count: int) -> list[Json]:
    """All different; `c1` and so on."""
    return [chat_line(f"c{n}", f"{prompt} {n}") for n in range(1, count + 1)]


def jsonl(lines: Iterable[Json]) -> bytes:
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()


def at(folder: Path) -> str:
    """The URL of a store there, and so of a batch lane."""
    return f"sqlite:///{folder}/cache.db"


def lane_config(up: Upstream, folder: Path, *, keys: str = "", extra: str = "", running: int = 128) -> str:
    """So many calls may run at once, of which batches have half: by default all that one batch has in flight."""
    text = config_text(up.url, store=at(folder), extra=extra)
    text = text.replace("kind: remote,", f"kind: remote, max_running: {running},", 1)
    return text.replace("\nendpoints:", f"{keys}\nendpoints:", 1)


@dataclass
class Lane:
    """The batch lane as the holder of one key has it, at one endpoint."""

    client: openai.OpenAI

    def upload(self, content: bytes, name: str = "requests.jsonl", **more: Any) -> FileObject:
        return self.client.files.create(file=(name, content), purpose="batch", **more)

    def start(self, lines: Iterable[Json] | bytes, *, url: Url = CHAT, **more: Any) -> Batch:
        file = self.upload(lines if isinstance(lines, bytes) else jsonl(lines))
        return self.client.batches.create(input_file_id=file.id, endpoint=url, completion_window="24h", **more)

    def get(self, id: str) -> Batch:
        return self.client.batches.retrieve(id)

    def ended(self, id: str, seconds: float = 30) -> Batch:
        """The batch when it has ended."""
        return self.when(id, lambda batch: batch.status in ENDED, seconds)

    def done(self, id: str, count: int, seconds: float = 30) -> Batch:
        """The batch when so many of its lines have a result."""
        return self.when(id, lambda batch: sum(counts(batch)[1:]) >= count, seconds)

    def when(self, id: str, what: Callable[[Batch], bool], seconds: float = 30) -> Batch:
        def look() -> Batch | None:
            batch = self.get(id)
            return batch if what(batch) else None

        found: Batch = until(look, seconds)
        return found

    def run(self, lines: Iterable[Json] | bytes, *, url: Url = CHAT, **more: Any) -> Batch:
        """One that ends `completed`."""
        batch = self.ended(self.start(lines, url=url, **more).id)
        assert batch.status == "completed", batch
        return batch

    def content(self, id: str) -> bytes:
        return self.client.files.content(id).read()

    def answers(self, batch: Batch) -> dict[str, Json]:
        """The lines of the output file by their custom_ids, each of which is there once."""
        return self._results(batch.output_file_id)

    def failures(self, batch: Batch) -> dict[str, Json]:
        return self._results(batch.error_file_id)

    def _results(self, id: str | None) -> dict[str, Json]:
        if id is None:
            return {}
        content = self.content(id)
        assert content.endswith(b"\n")
        found = [json.loads(line) for line in content.splitlines()]
        for result in found:
            assert result.keys() == {"id", "custom_id", "response", "error"}
            assert (result["response"] is None) == (result["error"] is not None)
        assert len({result["id"] for result in found}) == len(found)
        results = {result["custom_id"]: result for result in found}
        assert len(results) == len(found), "a line has two results"
        return results


@contextmanager
def lane(gw: Running | str, *, endpoint: str = "", key: str = ALICE) -> Iterator[Lane]:
    """With the official client, which tries nothing again here."""
    url = gw if isinstance(gw, str) else gw.url
    base = f"{url}/{endpoint}/v1" if endpoint else f"{url}/v1"
    with closing(openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=30)) as client:
        yield Lane(client)


def counts(batch: Batch) -> tuple[int, int, int]:
    """total, completed, failed."""
    found = batch.request_counts
    assert found is not None
    return found.total, found.completed, found.failed


def text_in(result: Json) -> str:
    """The text of a chat answer in the output file."""
    return str(result["response"]["body"]["choices"][0]["message"]["content"])


def prompt_of(seen: Seen) -> str:
    return str(seen.body["messages"][0]["content"])


def replies(by_prompt: Callable[[str], Reply | None]) -> Script:
    """A script that answers as usual, but where `by_prompt` has a reply for a chat request."""

    def script(seen: Seen, number: int) -> Reply:
        return by_prompt(prompt_of(seen)) or numbered(seen, number)

    return script


def held() -> Reply:
    """One that does not come while the test lasts."""
    return Reply([], first_pause=600)
