"""Documents: what was found before, and answers made from it, against a stored answer; what an index costs; and how
much of it all is there already when people ask.

Real pages lie in a real folder, and the model that finds them is the bundled one. Everything that is compared comes in
spellings of its JSON that are new each time, so that it is parsed and normalized, unless it says otherwise.
"""

import json
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import asking, documents, indexing, load
from benchmarks.asking import ASKERS, chat
from benchmarks.procs import bare_server, gateway
from benchmarks.report import Figures, Row
from benchmarks.rounds import Size, Steps, in_turns, say

CONFIG = """
auth:
  keys: {keys}
store: {{url: "sqlite:///{folder}/cache.db"}}
backends: {{up: {{kind: remote, base_url: "http://127.0.0.1:{upstream}/v1"}}}}
models: {{"*": up}}
retrievers:
  handbook: {{kind: folder, path: "{folder}/documents", acl: "{folder}/acl.yaml", tenants: [bench]}}
  counted: {{kind: http, url: "http://127.0.0.1:{shelf}/search", tenants: [bench]}}
endpoints:
  default: {{mode: request_response, cache: {{semantic: off}}}}
  handbook: {{mode: request_response, retrieval: {{retriever: handbook, top_k: 4}}, cache: {{semantic: off}}}}
  questions:
    {{mode: request_response, share: tenant, retrieval: {{retriever: handbook, top_k: 4}}, cache: {{semantic: off}}}}
  counted: {{mode: request_response, retrieval: {{retriever: counted, top_k: 4}}, cache: {{semantic: off}}}}
"""
ACL = f"""
default: []
rules:
  - {{path: "{documents.PACKAGES}/**", permissions: [{documents.PACKAGES}]}}
"""
CHAT, SEARCH = load.PATH, "/v1/vector_stores/handbook/search"
HANDBOOK, COUNTED = (f"/{endpoint}{load.PATH}" for endpoint in ("handbook", "counted"))
PATIENCE = 900.0
"""Seconds until all documents are found."""
BLANKS = 24
"""In a spelling: so many bits of its number."""
Did = tuple[str, str, str | None]
"""A tier, what it did, and why."""
FOUND: Did = ("retrieval", "hit", None)
EXACT: Did = ("exact", "hit", None)
IDENTICAL: Did = ("exact", "hit", "byte_identical")


class Amount(NamedTuple):
    """Every so manyth page, questions of people, and different ones among them."""

    every: int = 1
    asked: int = 1_000
    different: int = 200


LITTLE = Amount(every=20, asked=100, different=20)


def measure(size: Size) -> Figures:
    amount = Amount() if size.rounds > 1 else LITTLE
    figures = indexing.measure(size)
    pages = documents.pages(amount.every)
    with (
        tempfile.TemporaryDirectory() as name,
        bare_server("apps:upstream") as up,
        bare_server("shelf:service") as shelf,
    ):
        folder = Path(name)
        documents.write(folder / "documents", pages)
        (folder / "acl.yaml").write_text(ACL)
        config = CONFIG.format(keys=_keys(), folder=folder, upstream=up.port, shelf=shelf.port)
        with gateway(config, folder) as ours:
            say(f"retrieval: {len(pages)} real pages are indexed")
            _wait(ours.port)
            say(f"retrieval: {amount.asked:,} questions")
            different = documents.questions(amount.different, documents.pages())
            figures |= asking.measure(ours.port, different, amount.asked, f"handbook/{documents.PACKAGES}/")
            figures |= _hits(ours.port, size)
            figures |= _searches(ours.port, shelf.port, size)
    return figures


def _keys() -> str:
    admin = {"key": load.KEY, "tenant": "bench", "user": "bench", "role": "admin"}
    askers = [{"key": a.key, "tenant": "bench", "user": a.key, "permissions": a.permissions} for a in ASKERS]
    return json.dumps([admin, *askers])


def _wait(port: int) -> None:
    """Until the folder is indexed."""
    body = json.dumps({"query": "Is everything there?"}).encode()
    headers = {"authorization": f"Bearer {load.KEY}", "content-type": "application/json"}
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(load.url(port, SEARCH), body, headers), timeout=30).close()
        except urllib.error.HTTPError as error:
            said = error.read()
            if error.code != 503 or time.monotonic() > deadline:
                sys.exit(f"the documents are not found: {error.code} {said!r}")
            time.sleep(0.1)
        else:
            return


def _hits(port: int, size: Size) -> Figures:
    asked = documents.questions(size.prompts, documents.pages())
    chats, searches = [chat(question) for question in asked], [_search(question) for question in asked]
    for path, bodies in ((CHAT, chats), (HANDBOOK, chats), (SEARCH, searches)):
        for _ in range(2):
            load.one_by_one(port, bodies, path=path)
    spellings = count()

    def ever_new(bodies: Sequence[bytes]) -> list[bytes]:
        return [_spelled(body, next(spellings)) for _ in range(3) for body in bodies]

    def steps(_: int) -> Steps:
        return [
            ("hit_p50_ms", _timed(port, CHAT, ever_new(chats), {EXACT})),
            ("search_p50_ms", _timed(port, SEARCH, ever_new(searches), {FOUND})),
            ("answer_p50_ms", _timed(port, HANDBOOK, ever_new(chats), {FOUND, EXACT})),
            ("same_hit_p50_ms", _timed(port, CHAT, chats * 3, {IDENTICAL})),
            ("same_answer_p50_ms", _timed(port, HANDBOOK, chats * 3, {FOUND, IDENTICAL})),
        ]

    return in_turns("retrieval", size.rounds, steps, _compare)


def _compare(f: Figures) -> Figures:
    return {
        "search_ratio": f["search_p50_ms"] / f["hit_p50_ms"],
        "answer_ratio": f["answer_p50_ms"] / f["hit_p50_ms"],
        "same_answer_ratio": f["same_answer_p50_ms"] / f["same_hit_p50_ms"],
    }


def _search(question: str) -> bytes:
    return json.dumps({"query": question}).encode()


def _spelled(body: bytes, number: int) -> bytes:
    """The same JSON in other bytes for each number, and always as long."""
    blanks = format(number, f"0{BLANKS}b").replace("0", " ").replace("1", "\t")
    return b"{" + blanks.encode() + body[1:]


def _timed(port: int, path: str, bodies: list[bytes], tiers: set[Did]) -> Callable[[], float]:
    """Asks all of them, and looks into the decisions whether it was these tiers that answered, and nothing else."""

    def measured() -> float:
        taken = load.one_by_one(port, bodies, "exact", path)
        _check(port, len(bodies), tiers)
        return taken

    return measured


def _check(port: int, requests: int, tiers: set[Did]) -> None:
    for decision in _get(port, f"/admin/decisions?limit={requests}")["decisions"]:
        did = {(tier["tier"], tier["result"], tier.get("why")) for tier in decision["tiers"]}
        if did != tiers or "search" in decision["phases"]:
            sys.exit(f"this was to be answered by {tiers}, and was not: {decision}")


def _searches(port: int, shelf: int, size: Size) -> Figures:
    """How many searches a service sees while answers made from what it found are hits."""
    chats = [chat(question) for question in documents.questions(size.prompts, documents.pages())]
    load.one_by_one(port, chats, "miss", COUNTED)
    made = load.calls(shelf)
    if made != len(chats):
        sys.exit(f"{made} searches for {len(chats)} new questions")
    hits = [*chats, *(_spelled(chat, number) for number, chat in enumerate(chats))]
    load.one_by_one(port, hits, "exact", COUNTED)
    return {"answer_hits": len(hits), "searches": load.calls(shelf) - made}


def _get(port: int, path: str) -> Any:
    asked = urllib.request.Request(load.url(port, path), headers={"authorization": f"Bearer {load.KEY}"})
    with urllib.request.urlopen(asked, timeout=30) as response:
        return json.load(response)


def rows(f: Figures) -> list[Row]:
    def against(what: str, name: str, hit: str, bar: str = "") -> Row:
        times = f"{f[f'{name}_p50_ms']:.3f} ms", f"an exact hit: {f[f'{hit}_p50_ms']:.3f} ms"
        return Row(what, *times, f"{f[f'{name}_ratio']:.2f}x", bar)

    searches = f"{f['searches']:.0f} searches"
    return [
        against("search found before, p50, 1 connection", "search", "hit", "<= 1.5x"),
        against("(exact hit of an answer from documents)", "answer", "hit"),
        against("(the same, both byte for byte)", "same_answer", "same_hit"),
        Row(f"{f['answer_hits']:,.0f} exact hits of answers from documents", searches, "", searches, "0 searches"),
        *indexing.rows(f),
        *asking.rows(f),
    ]
