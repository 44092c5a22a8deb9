"""What becomes of a connection on which an upload was refused before all of it had arrived."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.batches import lane_config
from tests.support.gateway import ALICE
from tests.support.process import Served, serve
from tests.support.upstream import Upstream

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("lane")
    (folder / "refrain.yaml").write_text(lane_config(up, folder))
    with serve(folder) as served:
        served.wait_ready()
        yield served


REFUSED: dict[str, tuple[dict[str, str], dict[str, str], int]] = {
    "wrong purpose": ({"purpose": "fine-tune"}, {}, 400),
    "wrong key": ({"purpose": "batch"}, {"authorization": "Bearer rf-wrong"}, 401),
    "no such endpoint": ({"purpose": "batch"}, {}, 404),
}


@pytest.mark.parametrize("why", REFUSED)
def test_the_next_request_is_answered(served: Served, why: str) -> None:
    """What still arrives of the upload is not taken for it."""
    data, more, status = REFUSED[why]
    head = {"authorization": f"Bearer {ALICE}"}
    path = "/nowhere/v1/files" if status == 404 else "/v1/files"
    form: Any = {"data": data, "files": {"file": ("a.jsonl", b"x" * 5_000_000)}}
    with httpx.Client(base_url=served.url, headers=head, trust_env=False, timeout=30) as client:
        for _ in range(20):
            assert client.post(path, headers=more, **form).status_code == status
            listed = client.get("/v1/files")
            assert (listed.status_code, listed.json()["data"]) == (200, [])
