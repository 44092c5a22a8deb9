"""The evaluation of the semantic tier takes a user's own file, and plays it against a real gateway."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import ROOT, environment

pytestmark = [pytest.mark.slow, pytest.mark.model]

PAIRS = [
    {"id": "1", "a": "How do I reset my password?", "b": "how can i reset my password", "label": 1, "kind": "same"},
    {"id": "2", "a": "How do I turn Wi-Fi on?", "b": "How do I turn Wi-Fi off?", "label": 0, "kind": "antonym"},
    {"id": "3", "a": "Are raw eggs safe?", "b": "Are raw eggs unsafe?", "label": 0, "kind": "antonym"},
]
STREAM = [
    {"id": "1", "t": 0, "text": "How do I reset my password?", "answer": "password"},
    {"id": "2", "t": 1, "text": "What is the capital of France?", "answer": "france"},
    {"id": "3", "t": 2, "text": "How can I reset my password?", "answer": "password"},
    {"id": "4", "t": 3, "text": "What is the capital of Spain?", "answer": "spain"},
]


def evaluated(path: Path, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "benchmarks.semantic", str(path), "--json", "--max-wrong", "0.01"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)
    return dict(found)


def test_pairs(tmp_path: Path) -> None:
    found = evaluated(tmp_path / "mine.jsonl", PAIRS)
    assert (found["requests"], found["recall"], found["false_positive_rate"]) == (3, 1.0, 0.0)
    assert found["tier"]["hits"] == 1


def test_a_stream(tmp_path: Path) -> None:
    found = evaluated(tmp_path / "mine.jsonl", STREAM)
    assert (found["requests"], found["hit_rate"], found["false_hits"]) == (4, 0.25, 0.0)
