"""`refrain why ID` against a running gateway."""

import json
from collections.abc import Callable, Iterator

import httpx
import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from tests.support.gateway import ADMIN, ALICE, EVE, Running, config_text, running
from tests.support.upstream import free_port, upstream

Why = Callable[..., Result]


@pytest.fixture(scope="module")
def gw() -> Iterator[Running]:
    prices = "prices: {test-model: {input: 1.0, output: 2.0}}\n"
    with upstream() as up, running(config_text(up.url, extra=prices)) as gateway:
        yield gateway


@pytest.fixture
def why(gw: Running) -> Why:
    def run(asked: str | httpx.Response, *args: str, key: str | None = ADMIN, url: str | None = None) -> Result:
        id = asked if isinstance(asked, str) else asked.headers["x-request-id"]
        env = {"REFRAIN_URL": url or gw.url, "REFRAIN_KEY": key, "COLUMNS": "100"}
        return CliRunner().invoke(app, ["why", id, *args], env=env)

    return run


def lines(done: Result) -> dict[str, str]:
    """label -> text, of the lines that have one."""
    assert done.exit_code == 0, done.output
    found = {}
    for line in done.output.splitlines():
        label, _, text = line.partition("  ")
        if label.strip() and text:
            found[label.strip()] = text.strip()
    return found


def test_a_miss_is_explained(gw: Running, why: Why) -> None:
    first = gw.chat("Hello?", temperature=0)
    second = gw.chat("Hello?", temperature=1)
    shown = lines(why(second))
    assert shown["request"] == second.headers["x-request-id"]
    assert shown["who"] == "acme / alice"
    assert shown["answered"].startswith("miss (200) in ")
    assert "parameter temperature" in shown["why"]
    assert shown["nearest"] == json.loads(why(first, "--json").output)["key"]
    assert shown["exact tier"] == "miss."
    assert shown["semantic tier"].startswith("skipped. The semantic tier compared nothing: its embedder")
    assert "18 consumed" in shown["tokens"]
    assert "0.000025 consumed" in shown["USD"]
    out = why(second).output
    for phase in ("auth", "parse", "exact", "upstream", "first_byte", "other"):
        assert f"  {phase} " in out
    assert "%" in out


def test_a_hit_has_nothing_to_explain(gw: Running, why: Why) -> None:
    gw.chat("Again?")
    shown = lines(why(gw.chat("Again?")))
    assert shown["answered"].startswith("exact (200)")
    assert "The same bytes were answered before." in shown["exact tier"]
    assert "why" not in shown
    assert "nearest" not in shown
    assert shown["time saved"].endswith(" ms")


def test_what_failed_is_explained(gw: Running, why: Why) -> None:
    shown = lines(why(gw.chat("a", key="nobody's")))
    assert shown["answered"].startswith("error (401, invalid_api_key)")
    assert shown["why"] == "It was not answered: invalid_api_key."
    assert "who" not in shown


def test_what_was_not_kept(gw: Running, why: Why) -> None:
    shown = lines(why(gw.chat("a", store=True)))
    assert shown["not kept"] == "store_requested"
    assert "store: true" in shown["why"]


def test_json_is_the_decision(gw: Running, why: Why) -> None:
    asked = gw.chat("b")
    found = json.loads(why(asked, "--json").output)
    listed = gw.admin("GET", "/admin/decisions", params={"id": asked.headers["x-request-id"]}).json()
    assert found == listed
    assert found["why"]["code"] in ("question", "first_request")


def test_names_that_clients_invent_move_no_cursor_and_are_no_markup(gw: Running, why: Why) -> None:
    gw.chat("c", model="test-model")
    done = why(gw.chat("c", **{"\x1b[2J\x1b]0;own\x07[bold red]x[/]": 1}))
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.output
    assert "\x07" not in done.output
    assert "[bold red]x[/]" in done.output.replace("\n", "").replace("  ", "")


@pytest.mark.parametrize("id", ["req_ffffffffffff_1", "x&limit=1", "%", "a b", "../stats"])
def test_an_unknown_id(why: Why, id: str) -> None:
    done = why(id)
    assert done.exit_code == 1
    assert done.output.startswith("404: There is no decision")


def test_who_may_see_it(gw: Running, why: Why) -> None:
    asked = gw.chat("d", key=ALICE)
    for key, words in ((None, "REFRAIN_KEY"), (ALICE, "403"), (EVE, "404")):
        done = why(asked, key=key)
        assert done.exit_code == 1
        assert words in done.output
    done = why("req_1", "--json", url=f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 1
    assert "refrain serve" in json.loads(done.output)["error"]
