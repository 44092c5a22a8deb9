"""`refrain serve` as a process: how it starts, refuses, reloads and ends."""

import signal
import socket
import time
from pathlib import Path

import httpx
import pytest

from tests.support.gateway import ALICE, config_text
from tests.support.process import Served, refrain, serve
from tests.support.upstream import Upstream, free_port, upstream

pytestmark = pytest.mark.slow


def ask(served: Served, content: str = "Hello?", key: str = ALICE) -> httpx.Response:
    body = {"model": "test-model", "messages": [{"role": "user", "content": content}]}
    headers = {"authorization": f"Bearer {key}"}
    return httpx.post(f"{served.url}/v1/chat/completions", json=body, headers=headers, trust_env=False, timeout=30)


def write(folder: Path, up: Upstream, *, extra: str = "", store: str = "sqlite:///.refrain/cache.db") -> None:
    (folder / "refrain.yaml").write_text(config_text(up.url, store=store, extra=extra))


def test_a_configuration_in_the_working_directory_is_found(tmp_path: Path) -> None:
    with upstream() as up:
        write(tmp_path, up)
        with serve(tmp_path) as served:
            served.wait_ready()
            assert ask(served).headers["x-refrain-cache"] == "miss"
            assert ask(served).headers["x-refrain-cache"] == "exact"
            assert "server" not in ask(served).headers
        assert "refrain.yaml" in served.log.read_text()


@pytest.mark.slow
def test_sigterm_ends_it_quickly_and_writes_what_waits(tmp_path: Path) -> None:
    with upstream() as up:
        write(tmp_path, up)
        with serve(tmp_path) as served:
            served.wait_ready()
            ask(served)
            begun = time.monotonic()
            served.stop(signal.SIGTERM)
            assert time.monotonic() - begun < 5
        with serve(tmp_path) as served:
            served.wait_ready()
            assert ask(served).headers["x-refrain-cache"] == "exact"
        assert up.calls == 1


def test_a_changed_file_is_applied_and_a_broken_one_is_not(tmp_path: Path) -> None:
    with upstream() as up:
        write(tmp_path, up)
        with serve(tmp_path) as served:
            served.wait_ready()
            assert ask(served).status_code == ask(served).status_code == 200
            path = tmp_path / "refrain.yaml"
            good = path.read_text()
            path.write_text(good.replace(ALICE, "rf-another-key"))
            deadline = time.monotonic() + 20
            while ask(served).status_code != 401:  # on the byte-identical path too
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert ask(served, key="rf-another-key").status_code == 200
            path.write_text("endpoints: {default: {mode: nonsense}}")
            while "configuration refused" not in served.log.read_text():
                assert time.monotonic() < deadline
                time.sleep(0.1)
            assert ask(served, key="rf-another-key").status_code == 200


def test_a_port_in_use_is_one_line(tmp_path: Path) -> None:
    port = free_port()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        done = refrain("serve", "--port", str(port), cwd=tmp_path)
    assert done.returncode == 1
    assert f"Cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_broken_configuration_is_refused_with_the_field(tmp_path: Path) -> None:
    (tmp_path / "refrain.yaml").write_text("endpoints: {default: {cache: {exact: {ttl: 60}}}}")
    done = refrain("serve", cwd=tmp_path)
    assert done.returncode == 1
    assert "endpoints.default.cache.exact.ttl" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_that_cannot_be_opened_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    (tmp_path / "refrain.yaml").write_text("store: {url: sqlite:///file/cache.db}")
    done = refrain("serve", "--port", str(free_port()), cwd=tmp_path)
    assert done.returncode == 1
    assert "store.url" in done.stderr
    assert "Traceback" not in done.stderr


def test_public_addresses_need_keys(tmp_path: Path) -> None:
    done = refrain("serve", "--host", "0.0.0.0", cwd=tmp_path)
    assert done.returncode == 1
    assert "refrain keys new" in done.stderr


@pytest.mark.slow
def test_a_flood_of_headers_is_cut_off(tmp_path: Path) -> None:
    with upstream() as up:
        write(tmp_path, up)
        with serve(tmp_path) as served:
            served.wait_ready()
            lines = [b"x-%d: %s\r\n" % (n, b"y" * 100) for n in range(10_000)]
            for flood in (b"".join(lines), b"x-long: " + b"y" * 1_000_000 + b"\r\n"):
                with socket.create_connection(("127.0.0.1", served.port), timeout=20) as s:
                    answer = b""
                    try:
                        s.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + flood + b"\r\n")
                        answer = s.recv(65536)
                    except OSError:
                        pass  # closed under our hands: as good
                    assert b" 200 " not in answer.split(b"\r\n")[0]
            assert ask(served).status_code == 200
