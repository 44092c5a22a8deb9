"""Questions as people ask them: a few again and again, many hardly ever (Zipf), by some who may see all documents and
some who may not. How often their documents, and how often their answers, were there already."""

import json
import random
import sys
import urllib.request
from collections.abc import Sequence
from typing import NamedTuple

from benchmarks import load
from benchmarks.report import Figures, Row

EXPONENT = 1.0
PATH = f"/questions{load.PATH}"


class Asker(NamedTuple):
    key: str
    permissions: tuple[str, ...]


ASKERS = (
    Asker("rf-bench-ann", ("staff",)),
    Asker("rf-bench-bob", ("staff",)),
    Asker("rf-bench-eve", ("staff", "packages")),
    Asker("rf-bench-joe", ("staff", "packages")),
)


def measure(port: int, questions: Sequence[str], requests: int, hidden: str) -> Figures:
    """`hidden` is the beginning of the labels of documents that only those with all permissions may see."""
    rnd = random.Random(12)
    weights = [1 / rank**EXPONENT for rank in range(1, len(questions) + 1)]
    asked = [(rnd.choice(ASKERS), question) for question in rnd.choices(questions, weights, k=requests)]
    found = answered = 0
    for asker, question in asked:
        outcome, status, documents = _ask(port, asker, question)
        found += "retrieval; hit" in status
        answered += outcome == "exact"
        if hidden in documents and len(asker.permissions) == 1:
            sys.exit(f"a document is shown to somebody who may not see it: {documents}")
    return {
        "asked": requests,
        "questions": len(questions),
        "found_rate": found / requests,
        "answered_rate": answered / requests,
        "asked_before_alike": (requests - len({(asker.permissions, question) for asker, question in asked})) / requests,
        "asked_before": (requests - len({question for _, question in asked})) / requests,
    }


def rows(f: Figures) -> list[Row]:
    what = f"{f['asked']:,.0f} questions by Zipf over {f['questions']:.0f}, two sets of permissions:"
    alike, before = f"asked before with these: {f['asked_before_alike']:.1%}", f"asked before: {f['asked_before']:.1%}"
    return [
        Row(f"{what} searches that were kept", f"{f['found_rate']:.1%}", alike, f"{f['found_rate']:.1%}"),
        Row(f"{what} answers that were", f"{f['answered_rate']:.1%}", before, f"{f['answered_rate']:.1%}"),
    ]


def chat(question: str) -> bytes:
    """The body of a request."""
    messages = [{"role": "user", "content": question}]
    return json.dumps({"model": "bench", "messages": messages, "temperature": 0}).encode()


def _ask(port: int, asker: Asker, question: str) -> tuple[str, str, str]:
    """What the answer's headers say: the outcome, what each tier did, the documents."""
    headers = {"authorization": f"Bearer {asker.key}", "content-type": "application/json"}
    asked = urllib.request.Request(load.url(port, PATH), chat(question), headers)
    with urllib.request.urlopen(asked, timeout=60) as response:
        response.read()
        said = response.headers
    if not said["x-refrain-documents"]:
        sys.exit(f"an answer was made without documents: {said}")
    return said["x-refrain-cache"], said["cache-status"], said["x-refrain-documents"]
