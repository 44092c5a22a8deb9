"""Statement 33: whatever becomes of the embedding model, exact reuse goes on and old vectors never match."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.embedders import embedder_of
from tests.support.embedding_server import EmbeddingServer, embedding_server
from tests.support.gateway import Running, config_text, running
from tests.support.semantic import ASKED, OTHER, REWORDED, TWICE_REWORDED, Room, said, stats
from tests.support.traffic import outcome, text_of, until
from tests.support.upstream import Upstream

SYSTEM = "You are the same before and after."


@contextmanager
def gateway(up: Upstream, home: Path, embedder: str) -> Iterator[Running]:
    text = config_text(up.url, store=f"sqlite:///{home}/cache.db", extra=embedder)
    with running(text, embedders=embedder_of) as gw:
        until(lambda: stats(gw)["state"] == "ready")
        yield gw


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with embedding_server() as app:
        yield app


@pytest.fixture
def before(up: Upstream, server: EmbeddingServer, tmp_path: Path) -> str:
    """The answer to ASKED that was stored, with its vector, by a gateway that has ended."""
    with gateway(up, tmp_path, server.config()) as gw:
        room = Room(gw, system=SYSTEM)
        text = room.told(ASKED)
        room.told(OTHER)
        room.serves(REWORDED, text)
        until(lambda: stats(gw)["vectors"] == 2)
    return text


def test_33_the_same_embedder_finds_what_was_stored(
    before: str, up: Upstream, server: EmbeddingServer, tmp_path: Path
) -> None:
    """So that the tests below say something. No stored question is embedded again."""
    server.seen.clear()
    with gateway(up, tmp_path, server.config()) as gw:
        until(lambda: stats(gw)["vectors"] == 2)
        Room(gw, system=SYSTEM).serves(REWORDED, before)
    texts = [text for _, body in server.seen for text in body["input"]]
    assert ASKED not in texts
    assert OTHER not in texts


@pytest.mark.parametrize("change", ["name", "dimension"])
def test_33_vectors_of_another_embedder_never_match(
    before: str, up: Upstream, server: EmbeddingServer, tmp_path: Path, change: str
) -> None:
    """The new one puts the paraphrase just where the old one had put ASKED, and far from where it puts ASKED itself."""
    old_place = server.vector(ASKED)
    places = {ASKED: 7, REWORDED: old_place.index(max(old_place)), TWICE_REWORDED: 9, OTHER: 11}
    size = 16 if change == "dimension" else server.size
    server.vector = lambda text: [float(i == places.get(text, 13)) for i in range(size)]  # type: ignore[method-assign]
    server.seen.clear()
    with gateway(up, tmp_path, server.config(model="another" if change == "name" else "placed")) as gw:
        until(lambda: stats(gw)["questions"] == 2)
        assert stats(gw)["vectors"] == 0
        room = Room(gw, system=SYSTEM)
        again = room.ask(ASKED)
        assert (outcome(again), text_of(again)) == ("exact", before)
        own = room.refuses(REWORDED)
        assert said(gw, own)["similarity"] < 0.5
        assert text_of(own) != before
        room.refuses(TWICE_REWORDED)


def test_33_another_embedder_that_agrees_makes_its_own_vectors(
    before: str, up: Upstream, server: EmbeddingServer, tmp_path: Path
) -> None:
    """Texts outlive the change, and are embedded anew."""
    server.seen.clear()
    with gateway(up, tmp_path, server.config(model="another")) as gw:
        until(lambda: stats(gw)["questions"] == 2)
        Room(gw, system=SYSTEM).serves(REWORDED, before)
    texts = [text for _, body in server.seen for text in body["input"]]
    assert ASKED in texts


def test_33_a_failing_embedder_leaves_exact_reuse_alone_after_a_restart(
    before: str, up: Upstream, server: EmbeddingServer, tmp_path: Path
) -> None:
    server.status = 500
    text = config_text(up.url, store=f"sqlite:///{tmp_path}/cache.db", extra=server.config())
    with running(text, embedders=embedder_of) as gw:
        until(lambda: stats(gw)["state"] == "failed")
        room = Room(gw, system=SYSTEM)
        again = room.ask(ASKED)
        assert (outcome(again), text_of(again)) == ("exact", before)
        room.refuses("How far away is the moon?")
        assert gw.client.get("/readyz").status_code == 200
        server.status = 200
        until(lambda: stats(gw)["vectors"] == 2)
        room.serves(TWICE_REWORDED, before)


def test_33_a_slow_embedder_costs_its_deadline_and_no_answer(
    before: str, up: Upstream, server: EmbeddingServer, tmp_path: Path
) -> None:
    with gateway(up, tmp_path, server.config()) as gw:
        until(lambda: stats(gw)["vectors"] == 2)
        server.hang = 2.0
        room = Room(gw, system=SYSTEM)
        missed = room.refuses(REWORDED, why="embedder_deadline")
        assert missed.elapsed.total_seconds() < 1.5
        again = room.ask(ASKED)
        assert (outcome(again), text_of(again)) == ("exact", before)
