"""Questions about real documentation, in a folder with access rules: pages of this project, and texts, a page in HTML
and a PDF file of packages that it uses. Each answer is shared by whoever may see what it was made from, and lives until
that changes; a gateway that was stopped finds out at its start.

The story is told twice: with the real embedding model, and with one that only counts words.
"""

import re
import shutil
import site
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from gateway.config import Embedder as EmbedderConfig
from tests.backends.retrievers.folder.pdfs import pages, shown, stream
from tests.support.embedders import Placed
from tests.support.gateway import ALICE, BOB, KEYS, Running, running
from tests.support.live import answer_of, call, first_byte_held, gate, listening, settled
from tests.support.rag import CAROL, DAVE, cache_status, cited, prompt_of
from tests.support.rag import shown as documents_of
from tests.support.semantic import meaning
from tests.support.traffic import byte_identical, decision, outcome, text_of, until, upstream_calls
from tests.support.upstream import Upstream, numbered

ROOT = Path(__file__).parents[2]
PACKAGES = Path(site.getsitepackages()[0])
FROM_PACKAGES = {
    "jinja.txt": "jinja2-*.dist-info/licenses/LICENSE.txt",
    "urllib3.txt": "urllib3-*.dist-info/licenses/LICENSE.txt",
    "linter.html": "importlinter/ui/static/index.html",
}
KEYS_PAGE, BOOKS_PAGE, ENGINE_PAGE, SCREEN_PAGE = (
    f"refrain/{n}.md" for n in ("access", "ledger", "engine", "dashboard")
)
SECRET = {BOOKS_PAGE: "hr", ENGINE_PAGE: "eng"}
KEYS_QUESTION = "How do I make a new key with refrain keys new, for a tenant, a user and permissions?"
BOOKS_QUESTION = "What do the books count: tokens served, unserved, consumed, saved and billable?"
ENGINE_QUESTION = "What is the local engine, a process of its own with an OpenAI-style API on torch?"
SCREEN_QUESTION = "What does the dashboard show of requests, hit rate, tokens, money and time saved?"
LICENCE_QUESTION = "Are redistribution and use in source and binary forms permitted, with or without modification?"
PLANTS_QUESTION = "Who waters the rubber plant and the cactus in the kitchen on Fridays?"
QUESTIONS = (KEYS_QUESTION, BOOKS_QUESTION, ENGINE_QUESTION, SCREEN_QUESTION, LICENCE_QUESTION, PLANTS_QUESTION)
PLANTS = "# Plants\n\nThe rubber plant and the cactus in the kitchen are watered by the porter on Fridays.\n"

Answers = dict[str, httpx.Response]
Start = Callable[[str], AbstractContextManager[Running]]


class ByWords(Placed):
    """Texts with the same long words are near."""

    dimensions = 1024

    def __init__(self, config: EmbedderConfig | None = None) -> None:
        super().__init__(lambda text: text, identity="by words")

    async def embed(self, texts: Sequence[str], *, deadline: float) -> np.ndarray:
        rows = np.full((len(texts), self.dimensions), 1e-6, np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in re.findall(r"\w{4,}", text.lower()):
                row[_place(word)] += 1
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@cache
def _place(word: str) -> int:
    return int.from_bytes(blake2b(word.encode(), digest_size=4).digest()) % ByWords.dimensions


def start_by_words(text: str) -> AbstractContextManager[Running]:
    return running(text, embedders=ByWords)


@pytest.fixture(params=["words", pytest.param("model", marks=[pytest.mark.model, pytest.mark.slow])])
def start(request: pytest.FixtureRequest) -> Start:
    return meaning if request.param == "model" else start_by_words


@dataclass
class Documentation:
    """A folder of documents, its access rules, and whatever a gateway keeps of them."""

    up: Upstream
    place: Path
    gw: Running

    @property
    def folder(self) -> Path:
        return self.place / "docs"

    def ask(self, question: str, key: str = ALICE, **more: Any) -> httpx.Response:
        return self.gw.chat(question, key=key, path="/hr/v1", **more)

    def all(self, key: str) -> Answers:
        return {question: self.ask(question, key) for question in QUESTIONS}

    def search(self, key: str, question: str = KEYS_QUESTION) -> list[str]:
        found = self.gw.admin("POST", "/v1/vector_stores/handbook/search", key=key, json={"query": question})
        return [item["file_id"] for item in found.json()["data"]] if found.status_code == 200 else []


def forbid(place: Path, rules: dict[str, str]) -> None:
    lines = [f"  - {{path: {path}, permissions: [{needed}]}}\n" for path, needed in rules.items()]
    (place / "acl.yaml").write_text("default: []\nrules:\n" + "".join(lines))


@contextmanager
def served(start: Start, up: Upstream, place: Path) -> Iterator[Documentation]:
    keys = KEYS + (
        f"    - {{key: {CAROL}, tenant: acme, user: carol, permissions: [eng, hr]}}\n"
        f"    - {{key: {DAVE}, tenant: acme, user: dave}}\n"
    )
    text = f"""
backends: {{fake: {{kind: remote, base_url: "{up.url}"}}}}
models: {{"*": fake}}
store: {{url: "sqlite:///{place}/cache.db"}}
{keys}
retrievers:
  handbook: {{kind: folder, path: {place}/docs, acl: {place}/acl.yaml, tenants: [acme]}}
endpoints:
  hr: {{mode: stream, share: tenant, cache: {{semantic: off}}, retrieval: {{retriever: handbook, top_k: 2}}}}
"""
    with start(text) as gw:
        documentation = Documentation(up, place, gw)
        deadline = time.monotonic() + 60
        while not documentation.search(CAROL):
            assert time.monotonic() < deadline
            time.sleep(0.1)  # the model needs the machine
        yield documentation


def fill(place: Path, *, everything: bool) -> None:
    """The folder, before anybody has asked anything; without `everything` it has no more of our pages than it takes."""
    few = (KEYS_PAGE, BOOKS_PAGE, ENGINE_PAGE, SCREEN_PAGE)
    for page in [f"refrain/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))] if everything else few:
        (place / "docs" / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "docs" / Path(page).name, place / "docs" / page)
    for name, pattern in FROM_PACKAGES.items():
        (place / "docs" / "packages").mkdir(exist_ok=True)
        shutil.copy(sorted(PACKAGES.glob(pattern))[0], place / "docs" / "packages" / name)
    text = (place / "docs" / "packages" / "urllib3.txt").read_text().translate({ord(c): None for c in "()\\"})
    (place / "docs" / "packages" / "urllib3.pdf").write_bytes(pages([stream(shown(text))]))
    (place / "docs" / "packages" / "logo.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)))


def names(answer: httpx.Response) -> set[str]:
    """The documents that an answer was made from."""
    return {label.removeprefix("handbook/").partition("@")[0] for label in documents_of(answer)}


def changed(before: Answers, after: Answers) -> set[str]:
    """Of these questions those that have another answer now."""
    assert before.keys() == after.keys()
    for question, answer in after.items():
        same = text_of(answer) == text_of(before[question])
        assert outcome(answer) == ("exact" if same else "miss"), question
    return {question for question in before if text_of(before[question]) != text_of(after[question])}


def resting_on(answers: Answers, document: str) -> set[str]:
    return {question for question, answer in answers.items() if document in names(answer)}


def test_questions_about_documentation(start: Start, up: Upstream, tmp_path: Path) -> None:
    """The story from its first question to what is true after a restart."""
    fill(tmp_path, everything=start is not meaning)  # it takes the model seconds
    forbid(tmp_path, SECRET)
    with served(start, up, tmp_path) as d:
        every_kind_of_file_is_read(d)
        the_first_searches_and_generates_and_the_second_does_neither(d)
        nobody_without_the_permission_gets_anything_of_it(d)
        whoever_is_given_the_same_pieces_shares_the_answer(d)
        each_change_ends_what_it_should_and_nothing_else(d)
        before = {key: d.all(key) for key in (ALICE, BOB)}
        again = {key: d.all(key) for key in (ALICE, BOB)}
        assert all(not changed(before[key], again[key]) for key in before)
    with served(start, up, tmp_path) as d:
        a_restart_alone_ends_nothing(d, before)
    make_the_second_changes(d)
    with served(start, up, tmp_path) as d:
        what_changed_in_between_has_ended_what_it_should(d, before)
        the_first_searches_and_generates_and_the_second_does_neither(d, "after the restart")
        nobody_without_the_permission_gets_anything_of_it(d, "after the restart")


def every_kind_of_file_is_read(d: Documentation) -> None:
    assert "packages/linter.html" in d.search(DAVE, "Import Linter: loading the import graph, drawing edges")
    assert "packages/urllib3.pdf" in d.search(DAVE, "MIT License: copyright of the urllib3 contributors, no warranty")
    found = d.gw.admin(
        "POST", "/v1/vector_stores/handbook/search", key=DAVE, json={"query": "x", "max_num_results": 50}
    )
    assert not {item["file_id"] for item in found.json()["data"]} & {*SECRET, "packages/logo.png"}


def the_first_searches_and_generates_and_the_second_does_neither(d: Documentation, more: str = "") -> None:
    question = f"{KEYS_QUESTION} {more}"
    with upstream_calls(d.up, 1):
        first = d.ask(question)
    assert outcome(first) == "miss"
    assert cache_status(first)[-1] == "retrieval; fwd=miss"
    assert "search" in decision(d.gw, first)["phases"]
    assert KEYS_PAGE in names(first)
    prompt = prompt_of(d.up.seen[-1])
    assert prompt.endswith(question)
    assert "`refrain keys new --tenant acme" in prompt
    with upstream_calls(d.up, 0):
        second, third = d.ask(question, temperature=None), d.ask(question)
        streamed = d.ask(question, stream=True)
    for again in (second, third, streamed):
        assert cache_status(again) == ["exact; hit", "retrieval; hit"]
        assert "search" not in decision(d.gw, again)["phases"]
        assert text_of(again) == text_of(first)
        assert documents_of(again) == documents_of(first)
        assert cited(again, answer_of(again)) == documents_of(first)
    assert byte_identical(d.gw, d.ask(question))


def nobody_without_the_permission_gets_anything_of_it(d: Documentation, more: str = "") -> None:
    """Neither the piece, nor the answer, nor a place in the flight that makes it."""
    question = f"{BOOKS_QUESTION} {more}"
    with gate() as event, upstream_calls(d.up, 2):
        d.up.script = first_byte_held(event)
        theirs = call(d.gw, question, key=ALICE, path="/hr/v1")
        listening(d.gw, 1)
        other = call(d.gw, question, key=DAVE, path="/hr/v1")
        listening(d.gw, 2)
        joins = call(d.gw, question, key=CAROL, path="/hr/v1")
        listening(d.gw, 3)
        event.set()
        mine, without, joined = theirs.result(), other.result(), joins.result()
    d.up.script = numbered
    settled(d.gw)
    assert [outcome(a) for a in (mine, without)] == ["miss", "miss"]
    assert BOOKS_PAGE in names(mine)
    assert names(mine) & SECRET.keys() == {BOOKS_PAGE}
    assert BOOKS_PAGE in names(joined)
    assert not names(without) & SECRET.keys()
    assert text_of(without) != text_of(mine)
    (seen,) = [s for s in d.up.seen[-3:] if prompt_of(s).endswith(question) and BOOKS_PAGE not in prompt_of(s)]
    assert "<document name=" in prompt_of(seen)
    for _ in range(3):
        again = d.ask(question, DAVE)
        assert text_of(again) == text_of(without)
        assert BOOKS_PAGE not in again.text
    for key in (BOB, DAVE):
        assert BOOKS_PAGE not in d.search(key, question)
    assert BOOKS_PAGE in d.search(ALICE, question)
    assert d.search(CAROL, question)


def whoever_is_given_the_same_pieces_shares_the_answer(d: Documentation) -> None:
    """Whatever else they may see."""
    with upstream_calls(d.up, 1):
        answers = [d.ask(LICENCE_QUESTION, key) for key in (ALICE, BOB, CAROL, DAVE)]
    assert [outcome(a) for a in answers] == ["miss", "exact", "exact", "exact"]
    assert len({text_of(a) for a in answers}) == 1
    assert "packages/jinja.txt" in names(answers[0])
    assert len({tuple(documents_of(a)) for a in answers}) == 1


def each_change_ends_what_it_should_and_nothing_else(d: Documentation) -> None:
    for _ in range(3):  # the short way too
        before = d.all(ALICE)
    assert all(byte_identical(d.gw, answer) for answer in before.values())

    # Changed
    page = d.folder / KEYS_PAGE
    page.write_text(page.read_text().replace("prints a key, once", "prints a shining key, once"))
    ends = resting_on(before, KEYS_PAGE)
    assert KEYS_QUESTION in ends
    until(lambda: text_of(d.ask(KEYS_QUESTION)) != text_of(before[KEYS_QUESTION]), timeout=30)
    assert "a shining key" in prompt_of(d.up.seen[-1])
    after = d.all(ALICE)
    exactly(before, after, ends)

    # New
    before = d.all(ALICE)
    (d.folder / "plants.md").write_text(PLANTS)
    until(lambda: "plants.md" in names(d.ask(PLANTS_QUESTION)), timeout=30)
    exactly(before, d.all(ALICE), {PLANTS_QUESTION})

    # Newly forbidden
    before, bobs = d.all(ALICE), d.all(BOB)
    ends = resting_on(bobs, SCREEN_PAGE)
    assert SCREEN_QUESTION in ends
    forbid(d.place, {**SECRET, SCREEN_PAGE: "hr"})
    until(lambda: SCREEN_PAGE not in names(d.ask(SCREEN_QUESTION, BOB)), timeout=30)
    after = d.all(BOB)
    exactly(bobs, after, ends)
    assert resting_on(after, SCREEN_PAGE) == set()
    theirs = d.all(ALICE)
    assert SCREEN_PAGE in names(theirs[SCREEN_QUESTION])
    assert names(theirs[KEYS_QUESTION]) == names(before[KEYS_QUESTION])
    exactly(before, theirs, resting_on(before, SCREEN_PAGE))  # made anew, since what was stored of it is gone

    # Deleted
    before = d.all(ALICE)
    ends = resting_on(before, "plants.md")
    assert PLANTS_QUESTION in ends
    (d.folder / "plants.md").unlink()
    until(lambda: "plants.md" not in names(d.ask(PLANTS_QUESTION)), timeout=30)
    exactly(before, d.all(ALICE), ends)
    assert "porter" not in prompt_of(d.up.seen[-1])


def exactly(before: Answers, after: Answers, ends: set[str]) -> None:
    """Of these answers those have ended and no others: the others have the same text, and so the same maker. (Asking
    whether a change has come in may have made an answer anew already, so what ends is not told by the outcome.)"""
    assert {q for q in before if text_of(before[q]) != text_of(after[q])} == ends
    for question in before.keys() - ends:
        assert outcome(after[question]) == "exact"
        assert documents_of(after[question]) == documents_of(before[question])


def a_restart_alone_ends_nothing(d: Documentation, before: dict[str, Answers]) -> None:
    with upstream_calls(d.up, 0):
        for key, answers in before.items():
            again = d.all(key)
            assert changed(answers, again) == set()
            assert {cache_status(a)[-1] for a in again.values()} == {"retrieval; hit"}, "results are kept too"
            for question, answer in again.items():
                assert documents_of(answer) == documents_of(answers[question])
        for key in (CAROL, DAVE):
            d.ask(LICENCE_QUESTION, key)


def make_the_second_changes(d: Documentation) -> None:
    """While no gateway is there to see it: one page is another one, one is gone, one is new, one is allowed again."""
    page = d.folder / KEYS_PAGE
    page.write_text(page.read_text().replace("prints a shining key, once", "prints a dull key, once"))
    (d.folder / "packages" / "jinja.txt").unlink()
    (d.folder / "plants.md").write_text(PLANTS)
    forbid(d.place, {**SECRET, KEYS_PAGE: "hr"})


def what_changed_in_between_has_ended_what_it_should(d: Documentation, before: dict[str, Answers]) -> None:
    after = {key: d.all(key) for key in before}
    for key, answers in after.items():
        assert resting_on(answers, "packages/jinja.txt") == set()
        assert "plants.md" in names(answers[PLANTS_QUESTION])
        assert text_of(answers[LICENCE_QUESTION]) != text_of(before[key][LICENCE_QUESTION])
        assert text_of(answers[KEYS_QUESTION]) != text_of(before[key][KEYS_QUESTION])
    assert KEYS_PAGE in names(after[ALICE][KEYS_QUESTION])
    assert resting_on(after[BOB], KEYS_PAGE) == set(), "forbidden meanwhile"
    # Who was given back the dashboard's page has other answers; what rests on none of these pages is as it was.
    met = {KEYS_PAGE, "packages/jinja.txt", "plants.md", SCREEN_PAGE}
    for key, answers in after.items():
        for question in QUESTIONS:
            untouched = not (names(before[key][question]) | names(answers[question])) & met
            same = text_of(answers[question]) == text_of(before[key][question])
            assert same == untouched, (question, names(before[key][question]), names(answers[question]))
    assert "a dull key" in "".join(prompt_of(seen) for seen in d.up.seen[-12:])
