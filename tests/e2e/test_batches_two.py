"""Two gateways on one store: the batches are the first one's."""

from pathlib import Path

from tests.support.batches import lane_config
from tests.support.gateway import ALICE, running
from tests.support.traffic import error_of, outcome
from tests.support.upstream import upstream

HEAD = {"authorization": f"Bearer {ALICE}"}


def test_the_second_one_has_no_batch_lane(tmp_path: Path) -> None:
    with upstream() as up:
        text = lane_config(up, tmp_path)
        with running(text) as first:
            with running(text) as second:
                error = error_of(second.client.get("/v1/batches", headers=HEAD), 501)
                assert error["code"] == "batches_not_available"
                assert "durable_url" in error["message"]
                assert outcome(second.chat("Hello?")) == "miss"  # all else it does
                assert first.client.get("/v1/batches", headers=HEAD).json()["data"] == []
            assert first.client.get("/v1/batches", headers=HEAD).status_code == 200
        with running(text) as next_one:
            assert next_one.client.get("/v1/batches", headers=HEAD).status_code == 200
