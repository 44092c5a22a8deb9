"""`refrain batch run FILE` against a running gateway."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.asgi import Receive, Scope, Send, send_whole
from gateway.cli import app
from tests.support.batches import EMBEDDINGS, Json, chat_line, chat_lines, jsonl, lane, lane_config, line, replies
from tests.support.gateway import ALICE, Running, config_text, running
from tests.support.traffic import outcome, upstream_calls
from tests.support.upstream import Reply, Upstream, free_port, numbered, serve, upstream

pytestmark = pytest.mark.slow

Refrain = Callable[..., Result]


@pytest.fixture(scope="module")
def up() -> Iterator[Upstream]:
    with upstream() as app:
        yield app


@pytest.fixture(scope="module")
def gw(up: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(lane_config(up, tmp_path_factory.mktemp("lane"))) as gateway:
        yield gateway


@pytest.fixture
def refrain(gw: Running, up: Upstream) -> Iterator[Refrain]:
    def run(file: Path, *args: str, key: str | None = ALICE, url: str | None = None) -> Result:
        env = {"REFRAIN_URL": url or gw.url, "REFRAIN_KEY": key, "COLUMNS": "160"}
        done = CliRunner().invoke(app, ["batch", "run", str(file), *args], env=env)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
        return done

    yield run
    up.script = numbered


def written(path: Path) -> dict[str, Json]:
    found = [json.loads(line) for line in path.read_bytes().splitlines()]
    return {result["custom_id"]: result for result in found}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of three requests that no other test has."""
    path = tmp_path / "tickets.jsonl"
    path.write_bytes(jsonl(chat_lines(str(tmp_path), 3)))
    return path


def test_answers_lie_beside_the_file(gw: Running, up: Upstream, refrain: Refrain, file: Path) -> None:
    with upstream_calls(up, 3):
        done = refrain(file)
    assert done.exit_code == 0, done.output
    assert "completed: 3 answered, 0 failed, of 3" in done.stdout
    assert str(file.with_name("tickets.output.jsonl")) in done.stdout
    assert written(file.with_name("tickets.output.jsonl")).keys() == {"c1", "c2", "c3"}
    assert not file.with_name("tickets.errors.jsonl").exists()
    assert outcome(gw.chat(f"{file.parent} 2")) == "exact"


def test_another_endpoint_and_another_place(gw: Running, up: Upstream, refrain: Refrain, file: Path) -> None:
    place = file.with_name("answers.jsonl")
    with upstream_calls(up, 3):
        assert refrain(file, "--endpoint", "rr", "--output", str(place)).exit_code == 0
        assert outcome(gw.chat(f"{file.parent} 2", path="/rr/v1")) == "exact"
    assert written(place).keys() == {"c1", "c2", "c3"}


def test_embeddings(refrain: Refrain, tmp_path: Path) -> None:
    """What is asked for stands in the file."""
    file = tmp_path / "texts.jsonl"
    file.write_bytes(b"\xef\xbb\xbf\r\n" + jsonl([line("one", EMBEDDINGS, input="?")]))
    assert refrain(file).exit_code == 0
    assert written(tmp_path / "texts.output.jsonl")["one"]["response"]["body"]["data"]


def test_what_failed_lies_there_too(up: Upstream, refrain: Refrain, file: Path) -> None:
    refusal = Reply([b'{"error": {"message": "No."}}'], status=400)
    up.script = replies(lambda content: refusal if content.endswith("2") else None)
    done = refrain(file)
    assert done.exit_code == 1
    assert "completed: 2 answered, 1 failed, of 3" in done.stdout
    assert written(file.with_name("tickets.output.jsonl")).keys() == {"c1", "c3"}
    assert written(file.with_name("tickets.errors.jsonl")).keys() == {"c2"}


def test_answers_and_failures_never_lie_in_one_file(up: Upstream, refrain: Refrain, file: Path) -> None:
    refusal = Reply([b'{"error": {"message": "No."}}'], status=400)
    up.script = replies(lambda content: refusal if content.endswith("2") else None)
    place = file.with_name("both.errors.jsonl")
    refrain(file, "--output", str(place))
    assert written(place).keys() == {"c1", "c3"}


def test_failures_of_an_earlier_run_are_gone(up: Upstream, refrain: Refrain, file: Path) -> None:
    up.script = replies(lambda content: Reply([b'{"error": {"message": "No."}}'], status=400))
    assert refrain(file).exit_code == 1
    assert not file.with_name("tickets.output.jsonl").exists()
    up.script = numbered
    assert refrain(file).exit_code == 0
    assert not file.with_name("tickets.errors.jsonl").exists()


@pytest.mark.parametrize("place", ["nowhere/answers.jsonl", "."], ids=["no such folder", "a folder"])
def test_a_place_where_nothing_can_be_written(up: Upstream, refrain: Refrain, file: Path, place: str) -> None:
    """Known before anything runs."""
    with upstream_calls(up, 0):
        done = refrain(file, "--output", str(file.parent / place))
    assert done.exit_code in (1, 2)
    assert done.stderr.strip()


def test_one_that_was_made_before(gw: Running, up: Upstream, refrain: Refrain, file: Path) -> None:
    with lane(gw) as alice:
        id = alice.run(file.read_bytes()).id
    with upstream_calls(up, 0):
        done = refrain(file, "--batch", id)
    assert done.exit_code == 0, done.output
    assert written(file.with_name("tickets.output.jsonl")).keys() == {"c1", "c2", "c3"}


SHOWN = {
    **{"id": "batch_1", "status": "completed", "errors": None, "output_file_id": "file-o", "error_file_id": None},
    "request_counts": {"total": 1, "completed": 1, "failed": 0},
}


@pytest.mark.parametrize("status", [429, 503])
def test_a_gateway_that_is_busy_is_asked_again(refrain: Refrain, file: Path, status: int) -> None:
    """When it says, for the batch as for its answers: they are there whatever becomes of the command."""
    asked: list[str] = []

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        asked.append(scope["path"])
        if asked.count(scope["path"]) < 3:
            await send_whole(send, status, [(b"retry-after", b"0")], b"{}")
        else:
            answers = scope["path"].endswith("/content")
            await send_whole(send, 200, [], b"answers\n" if answers else json.dumps(SHOWN).encode())

    with serve(busy) as port:
        done = refrain(file, "--batch", "batch_1", url=f"http://127.0.0.1:{port}")
    assert done.exit_code == 0, done.output
    assert asked == ["/v1/batches/batch_1"] * 3 + ["/v1/files/file-o/content"] * 3
    assert file.with_name("tickets.output.jsonl").read_bytes() == b"answers\n"


def test_a_gateway_that_goes_away(refrain: Refrain, file: Path) -> None:
    """Whoever waited knows what to ask for when it is back."""

    async def leaving(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/v1/files/"):
            raise ConnectionResetError
        await send_whole(send, 200, [], json.dumps(SHOWN).encode())

    with serve(leaving) as port:
        done = refrain(file, "--json", url=f"http://127.0.0.1:{port}")
    assert done.exit_code == 1
    assert "error" in json.loads(done.stdout.splitlines()[-1])
    assert "batch_1" in done.stderr
    assert "--batch" in done.stderr


def test_json(refrain: Refrain, file: Path) -> None:
    done = refrain(file, "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout[done.stdout.index("{\n") :])  # the gateway of the test logs to the same place
    assert said["files"] == {"output": str(file.with_name("tickets.output.jsonl"))}
    assert said["batch"]["status"] == "completed"
    assert said["batch"]["request_counts"] == {"total": 3, "completed": 3, "failed": 0}


def test_faults_are_shown_with_their_lines(up: Upstream, refrain: Refrain, file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\n{\n" + jsonl([chat_line("c1", "?")]))
    with upstream_calls(up, 0):
        done = refrain(file)
    assert done.exit_code == 1
    assert "failed: 0 answered" in done.stdout
    for number in (5, 6):
        assert f"line {number}: " in done.stderr
    assert not file.with_name("tickets.output.jsonl").exists()


def test_all_faults_are_counted(refrain: Refrain, file: Path) -> None:
    """Where they are too many to be shown."""
    file.write_bytes(file.read_bytes() + b"{\n" * 50)
    done = refrain(file)
    assert done.exit_code == 1
    shown = sum(said.startswith("line ") for said in done.stderr.splitlines())
    assert 20 <= shown < 50
    assert f"{50 - shown} more" in done.stderr


@pytest.mark.parametrize("content", [b"", b"\n", b"{", b"[]", b'{"custom_id": "a"}', b"\xff\xfe"])
def test_what_is_no_file_of_requests(refrain: Refrain, file: Path, content: bytes) -> None:
    file.write_bytes(content)
    done = refrain(file)
    assert done.exit_code == 1
    assert done.stderr.strip()


def test_a_file_that_is_not_there(refrain: Refrain, tmp_path: Path) -> None:
    assert refrain(tmp_path / "nothing.jsonl").exit_code == 2


def test_who_may_not(refrain: Refrain, file: Path) -> None:
    for key in (None, "wrong", "schlüssel"):
        done = refrain(file, key=key)
        assert done.exit_code == 1
        assert "key" in done.stderr.lower()


def test_where_nobody_answers(refrain: Refrain, file: Path) -> None:
    done = refrain(file, "--json", url=f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 1
    assert "refrain serve" in json.loads(done.stdout)["error"]


@pytest.mark.parametrize("url", ["http://[", "nowhere", "http://127.0.0.1:99999"])
def test_a_url_that_is_none(refrain: Refrain, file: Path, url: str) -> None:
    done = refrain(file, url=url)
    assert done.exit_code == 1
    assert done.stderr.strip()


def test_what_answers_is_no_gateway(refrain: Refrain, file: Path) -> None:
    async def website(scope: Scope, receive: Receive, send: Send) -> None:
        await send_whole(send, 200, [], b"<html>")

    with serve(website) as port:
        done = refrain(file, url=f"http://127.0.0.1:{port}")
    assert done.exit_code == 1
    assert done.stderr.strip()


def test_a_gateway_without_a_disk(up: Upstream, refrain: Refrain, file: Path) -> None:
    with running(config_text(up.url)) as memory:
        done = refrain(file, url=memory.url)
    assert done.exit_code == 1
    assert "durable_url" in done.stderr
