"""Who has to wait while batches run: other batches of the same tenant, and nobody else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.batches import Lane, chat_lines, counts, held, lane, lane_config, prompt_of, replies
from tests.support.gateway import EVE, Running, running
from tests.support.traffic import outcome, until
from tests.support.upstream import Upstream

NIGHTLY = "\n  nightly: {mode: batch}\n"


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"), extra=NIGHTLY)) as gateway:
        yield gateway


@pytest.fixture
def alice(gw: Running) -> Iterator[Lane]:
    with lane(gw) as found:
        yield found


def test_four_batches_of_a_tenant_run_at_once(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    """The others wait for their turn, and are in nobody else's way."""
    up.script = replies(lambda content: held() if content.startswith(prompt) else None)
    ids = [alice.start(chat_lines(f"{prompt} {n}", 2)).id for n in range(6)]
    for id in ids:
        alice.when(id, lambda batch: batch.status == "in_progress")
    until(lambda: up.open == 8)
    with lane(gw, key=EVE) as eve:
        assert counts(eve.run(chat_lines(f"Of another tenant, {prompt}", 40))) == (40, 40, 0)
    assert up.open == 8
    alice.client.batches.cancel(ids[0])
    assert alice.ended(ids[0]).status == "cancelled"
    until(lambda: up.open == 8 and f"{prompt} 4 2" in prompt_of(up.seen[-1]))  # the fifth has its turn
    for id in ids[1:]:
        alice.client.batches.cancel(id)
        assert counts(alice.ended(id)) == (2, 0, 2)


def test_a_plain_call_waits_for_no_batch_of_its_tenant(gw: Running, alice: Lane, up: Upstream, prompt: str) -> None:
    up.script = replies(lambda content: held() if content.startswith(f"{prompt} held") else None)
    ids = [alice.start(chat_lines(f"{prompt} held {n}", 2)).id for n in range(5)]
    until(lambda: up.open == 8)
    assert outcome(gw.chat(prompt, path="/nightly/v1", headers={"prefer": "wait=20"})) == "miss"
    for id in ids:
        alice.client.batches.cancel(id)
        alice.ended(id)


def test_nobody_online_waits_for_a_batch(up: Upstream, tmp_path: Path) -> None:
    """Where two calls run at once a batch has one of them, and whoever is online the other."""
    up.script = replies(lambda content: held() if content.startswith("Held") else None)
    with running(lane_config(up, tmp_path, running=2)) as gw, lane(gw) as alice:
        id = alice.start(chat_lines("Held?", 40)).id
        until(lambda: up.open == 1)
        for n in range(20):
            assert outcome(gw.chat(f"Online {n}?")) == "miss"
        assert counts(alice.get(id)) == (40, 0, 0)
        alice.client.batches.cancel(id)
        assert counts(alice.ended(id)) == (40, 0, 40)
