"""Every reason code that exists has a sentence and a row in docs/why.md; and what the sentences say."""

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from backends.retrievers import RetrieverReason
from cache.semantic.embedder_base import Reason, State
from cache.semantic.guards import CLASSES
from gateway.latency.budget import OVER_BUDGET
from gateway.retrieval.grounds import RETRIEVER_DOWN
from gateway.why import reasons
from gateway.why.why import CODES, MAX_NAMES, Why, code_of, duration

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "why.md").read_text()
CONSTANTS = {"OVER_BUDGET": OVER_BUDGET}


# The codes, read from the code


def tree(name: str) -> ast.Module:
    return ast.parse((ROOT / name).read_text())


def texts(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may have for its value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value:
        yield node.value
    elif isinstance(node, ast.Name) and node.id in CONSTANTS:
        yield CONSTANTS[node.id]
    elif isinstance(node, ast.IfExp):
        yield from (*texts(node.body), *texts(node.orelse))
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from texts(value)


def returned(name: str, *functions: str) -> set[str]:
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in functions:
            returns = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and n.value is not None]
            found[node.name] = {text for value in returns for text in texts(value)}
    assert found.keys() == set(functions)
    return set().union(*found.values())


def passed(name: str, function: str, place: int) -> set[str]:
    """What calls of this function have at that place."""
    found = set()
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == function:
            if len(node.args) > place:
                found |= set(texts(node.args[place]))
            found |= {text for k in node.keywords if k.arg in ("why", "reason") for text in texts(k.value)}
    return found


def assigned(name: str, variable: str) -> set[str]:
    found = set()
    for node in ast.walk(tree(name)):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == variable:
                found |= set(texts(node.value))
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                for one, value in zip(target.elts, node.value.elts, strict=True):
                    if isinstance(one, ast.Name) and one.id == variable:
                        found |= set(texts(value))
    return found


REQUEST = (
    returned("gateway/cacheability.py", "request_reason") | returned("gateway/ask.py", "_bypass") | {RETRIEVER_DOWN}
)
EXACT = (
    passed("gateway/pipeline.py", "tier", 2)
    | passed("gateway/fallback.py", "tier", 2)
    | passed("cache/freshness.py", "Verdict", 3)
    | passed("gateway/hits.py", "Tier", 2)
    | passed("gateway/pipeline.py", "_serve", 5)
    | assigned("gateway/pipeline.py", "why")
)
NOT_STORED = (
    returned("gateway/cacheability.py", "answer_reason")
    | returned("gateway/fill.py", "_reason")
    | returned("cache/exact.py", "put")
)
NOT_ASKED = (
    returned("gateway/question.py", "read_question", "_unfit")
    | {code for code in passed("gateway/semantics.py", "tier", 2) if code != "hit"}
    | {f"embedder_{word}" for word in (*get_args(State), *get_args(Reason)) if word != "too_long"}
)
FINDINGS = (
    passed("cache/semantic/tier.py", "Finding", 1)
    | passed("cache/semantic/tier.py", "replace", 1)
    | assigned("cache/semantic/tier.py", "reason")
)
GUARDS = passed("cache/semantic/guards.py", "append", 0) | set(CLASSES)
VERDICTS = passed("cache/semantic/verifier.py", "Verdict", 2)

RETRIEVAL = (
    {code for code in passed("gateway/retrieval/finder.py", "tier", 2) if code not in ("hit", "miss")}
    | passed("gateway/retrieval/finder.py", "_miss", 1)
    | passed("gateway/retrieval/grounds.py", "tier", 2)
    | returned("gateway/retrieval/finder.py", "_skipped")
    | set(get_args(RetrieverReason))
)

FAMILIES = {
    "retrieval": (RETRIEVAL, reasons.RETRIEVAL, set()),
    "request": (REQUEST, reasons.REQUEST, set()),
    "exact": (EXACT - {"alias"}, reasons.EXACT, set()),
    "not stored": (
        NOT_STORED,
        reasons.NOT_STORED,
        # The backend's words, and what happens to the client.
        {"finish_reason_length", "finish_reason_content_filter", "finish_reason_missing", "client_left"},
    ),
    "not asked": (NOT_ASKED | (FINDINGS - reasons.UNUSABLE.keys()), reasons.NOT_ASKED, set()),
    "guards": (GUARDS, reasons.REFUSED, set()),
    "unusable": (VERDICTS | (FINDINGS & reasons.UNUSABLE.keys()), reasons.UNUSABLE, set()),
}


def test_the_codes_were_found() -> None:
    """Else the test below would be about nothing."""
    assert {"store_requested", "sampled", "tier_off", "no_store"} <= REQUEST
    assert {"no_cache", "expired", "byte_identical", "stale_if_error", "stale_while_revalidate", OVER_BUDGET} <= EXACT
    assert {"no_choices", "too_large", "ttl_zero", "store_unavailable"} <= NOT_STORED
    assert {"tools", "not_a_user_turn", "failed", "embedder_starting", "embedder_busy"} <= NOT_ASKED
    assert {"first_in_context", "reported_wrong", "gone", "expired", "nothing_near"} <= FINDINGS
    assert {"number", "antonym", "swapped", "scope", "unit"} <= GUARDS
    assert {"similarity", "margin"} == VERDICTS


@pytest.mark.parametrize("family", FAMILIES)
def test_every_code_has_a_sentence_and_no_sentence_is_for_none(family: str) -> None:
    codes, sentences, others = FAMILIES[family]
    assert codes | others == set(sentences)


def explained() -> set[str]:
    return set(re.findall(r"^\| `([a-z_.]+)` \| .+ \|$", PAGE, re.MULTILINE))


def test_every_code_is_explained_in_the_documentation() -> None:
    codes = {*CODES, "alias", "finish_reason_..."}
    for _, sentences, _ in FAMILIES.values():
        codes |= set(sentences)
    assert explained() == codes


# What is said


def test_every_sentence_is_one() -> None:
    said = [Why(code, reason="empty").text for code in {*CODES, *reasons.REQUEST, *reasons.EXACT}]
    said += [Why("not_stored_before", reason=code).text for code in {*reasons.NOT_STORED, *reasons.REQUEST}]
    said += [Why("question", ("question",), b"1", reason=code, amount=0.5).text for code in semantic_codes()]
    said += [reasons.semantic(code, None) for code in semantic_codes()]
    for text in said:
        assert re.fullmatch(r"[A-Z].{10,400}\.", text), text
        assert ".." not in text, text


def semantic_codes() -> set[str]:
    return {*reasons.NOT_ASKED, *reasons.REFUSED, *reasons.UNUSABLE}


def test_the_verifiers_reason_comes_with_the_similarity() -> None:
    why = Why("question", ("question",), b"\x01" * 32, reason="number", amount=0.9123)
    assert why.text.endswith("The nearest question has similarity 0.91, and the verifier refused it: numbers differ.")


def test_a_word_that_nobody_here_knows_is_said_as_it_is() -> None:
    assert "'odd\\nend" not in reasons.not_stored("finish_reason_odd\nend")
    assert "odd?end" in reasons.not_stored("finish_reason_odd\nend")
    assert reasons.semantic("quite_new", None) == "The semantic tier served nothing: quite new."
    assert reasons.tier("exact", "miss", "quite_new") == "Quite new."


def test_what_a_tier_says_as_a_sentence() -> None:
    assert reasons.tier("exact", "miss", None) == ""
    assert reasons.tier("exact", "skipped", "no_store").startswith("The request said no-store")
    assert reasons.tier("semantic", "hit", None, 0.966) == (
        "A question that means the same was answered before (similarity 0.97)."
    )
    assert reasons.tier("semantic", "hit", "alias", 0.966).endswith("as remembered.")
    assert "tools" in reasons.tier("semantic", "skipped", "tools")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-1, "0 seconds"),
        (1.9, "1 second"),
        (119, "119 seconds"),
        (120, "2 minutes"),
        (7_199, "119 minutes"),
        (7_200, "2 hours"),
        (172_799, "47 hours"),
        (172_800, "2 days"),
    ],
    ids=str,
)
def test_how_long_ago(seconds: float, said: str) -> None:
    assert duration(seconds) == said
    assert f"It ended {said} ago." in Why("expired", amount=seconds).text


@pytest.mark.parametrize(
    ("differs", "code"),
    [
        ("parameter temperature", "parameter"),
        ("parameter temperature, parameter top_p", "several"),
        ("other parameters", "parameter"),
        ("tools", "tools"),
        ("system prompt", "system_prompt"),
        ("system prompt, question", "several"),
        ("earlier turn 1", "earlier_turn"),
        ("earlier turn 1, earlier turn 2, question", "earlier_turn"),
        ("earlier turns from 128 on, last turn", "earlier_turn"),
        ("question", "question"),
        ("prompt", "question"),
        ("last turn", "question"),
        ("model", "model"),
        ("model, backend", "model"),
        ("endpoint", "endpoint"),
        ("endpoint, endpoint settings, backend", "endpoint"),
        ("endpoint settings", "endpoint"),
        ("endpoint, question", "several"),
        ("api", "api"),
        ("backend", "backend"),
        ("header openai-beta", "header"),
        ("header openai-beta, header anthropic-beta", "several"),
        ("query api-version", "query"),
    ],
    ids=str,
)
def test_the_one_word_for_what_differs(differs: str, code: str) -> None:
    assert code_of(tuple(differs.split(", "))) == code


def test_at_most_eight_names_are_told_and_how_many_there_are_beside() -> None:
    names = tuple(f"parameter p{i}" for i in range(MAX_NAMES + 3))
    shown = Why("several", names, b"\x02" * 32).as_dict()
    assert shown["differs"] == list(names[:MAX_NAMES])
    assert "p7 and 3 more." in shown["text"]
    assert shown["nearest"] == "02" * 32
    assert json.loads(json.dumps(shown)) == shown
    assert Why("first_request").as_dict()["nearest"] is None
