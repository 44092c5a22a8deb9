"""The three examples in examples/modes, as their users start them, with the real local model: a stream for a person,
one object for a program, and a night's tickets in the batch lane."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.process import ROOT, Served, environment, serve

pytestmark = [pytest.mark.model, pytest.mark.slow]

MODES = ROOT / "examples/modes"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(tmp_path_factory.mktemp("home"), "--config", str(MODES / "refrain.yaml")) as served:
        served.wait_ready()
        yield served


def run(gateway: Served, name: str) -> list[str]:
    """What the example prints."""
    env = environment(REFRAIN_URL=gateway.url)
    script = [sys.executable, str(MODES / name)]
    done = subprocess.run(script, cwd=Path("/"), env=env, capture_output=True, text=True, timeout=120, check=True)
    assert done.stderr == ""
    return done.stdout.strip().splitlines()


def decisions(gateway: Served, endpoint: str) -> list[dict[str, object]]:
    """Newest first."""
    found = httpx.get(f"{gateway.url}/admin/decisions", params={"endpoint": endpoint}, trust_env=False).json()
    return list(found["decisions"])


def test_a_person_reads_along(gateway: Served) -> None:
    first, again = run(gateway, "chat_assistant.py"), run(gateway, "chat_assistant.py")
    assert (first[0], again[0]) == ("[miss]", "[exact]")
    assert first[1:] == again[1:] != []
    made = decisions(gateway, "chat_assistant")[-1]
    assert made["stream"] is True


def test_a_program_gets_one_whole_object(gateway: Served) -> None:
    first, again = run(gateway, "invoice_json_extraction.py"), run(gateway, "invoice_json_extraction.py")
    assert first[0].startswith("[miss] {")
    assert again[0].startswith("[exact] {")
    assert first[0].partition(" ")[2] == again[0].partition(" ")[2]
    made = decisions(gateway, "invoice_json_extraction")[-1]
    assert made["stream"] is False


def test_nobody_waits_for_the_nights_tickets(gateway: Served) -> None:
    first, again = run(gateway, "nightly_ticket_summary.py"), run(gateway, "nightly_ticket_summary.py")
    assert first[0] == again[0] == "[completed] BatchRequestCounts(completed=3, failed=0, total=3)"
    answers = dict(line.split(": ", 1) for line in first[1:] if line.startswith("ticket-"))
    assert answers.keys() == {"ticket-1", "ticket-2", "ticket-3"}
    assert answers["ticket-1"] == answers["ticket-3"] != answers["ticket-2"]
    assert first[1:] == again[1:]
    made = decisions(gateway, "nightly_ticket_summary")
    outcomes = [one["outcome"] for one in made if one["stream"] is False]
    assert sorted(outcomes[3:]) in (["exact", "miss", "miss"], ["joined", "miss", "miss"])
    assert outcomes[:3] == ["exact"] * 3  # the second night costs nothing


def test_a_plain_call_for_the_night_is_told_where_to_look(gateway: Served) -> None:
    line = json.loads((MODES / "tickets.jsonl").read_text().splitlines()[0])
    body = {**line["body"], "max_tokens": 5}
    url = f"{gateway.url}/nightly_ticket_summary/v1/chat/completions"
    later = httpx.post(url, json=body, trust_env=False)
    assert later.status_code == 202
    assert httpx.get(f"{gateway.url}{later.headers['location']}", trust_env=False).json()["id"] == later.json()["id"]
    body["max_tokens"] = 6
    now = httpx.post(url, json=body, headers={"prefer": "wait=60"}, trust_env=False, timeout=90)
    assert now.status_code == 200
    assert now.json()["choices"][0]["finish_reason"] == "length"
