"""`refrain cache stats|purge` and `refrain keys list|revoke` against a running gateway."""

import json
from collections.abc import Callable, Iterator

import pytest
from typer.testing import CliRunner, Result

from gateway.cli import app
from gateway.config.keys import digest_key
from tests.support.gateway import ADMIN, ALICE, BOB, EVE, Running, config_text, running
from tests.support.traffic import outcome
from tests.support.upstream import Upstream, free_port

Refrain = Callable[..., Result]


@pytest.fixture
def gw(up: Upstream) -> Iterator[Running]:
    extra = "  soft: {cache: {exact: {ttl: 1h, stale_while_revalidate: 1h}}}\n"
    with running(config_text(up.url, extra=extra)) as gateway:
        yield gateway


@pytest.fixture
def refrain(gw: Running) -> Refrain:
    def run(*args: str, key: str | None = ADMIN, url: str | None = None) -> Result:
        env = {"REFRAIN_URL": url or gw.url, "REFRAIN_KEY": key, "COLUMNS": "160"}
        return CliRunner().invoke(app, args, env=env)

    return run


def last_line(done: Result) -> str:
    """The gateway of the test writes its log to the same place."""
    return done.output.splitlines()[-1]


def test_stats(gw: Running, refrain: Refrain) -> None:
    for _ in range(3):
        gw.chat()
    done = refrain("cache", "stats")
    assert done.exit_code == 0, done.output
    for word in ("exact", "miss", "tokens", "USD", "memory", "served"):
        assert word in done.output
    found = json.loads(refrain("cache", "stats", "--json").output)
    assert found["requests"] == {"miss": 1, "exact": 2}
    assert found["tiers"]["exact"]["memory"]["entries"] == 1


def test_whoever_sees_one_tenant_does_not_see_what_all_keep(gw: Running, refrain: Refrain) -> None:
    gw.chat()
    done = refrain("cache", "stats", key=EVE)
    assert done.exit_code == 0, done.output
    assert "memory" not in done.output
    assert json.loads(refrain("cache", "stats", "--json", key=EVE).output)["requests"] == {}


def test_purge(gw: Running, refrain: Refrain) -> None:
    gw.chat(headers={"x-refrain-tags": "red"})
    gw.chat(path="/rr/v1")
    gw.chat(path="/soft/v1")
    assert "1 entry would be gone (dry run)." in refrain("cache", "purge", "--tag", "red", "--dry-run").output
    assert "1 entry is gone." in refrain("cache", "purge", "--tag", "red", "--tag", "blue").output
    assert "0 entries are gone." in refrain("cache", "purge", "--tag", "red").output
    assert "1 entry is stale now." in refrain("cache", "purge", "--endpoint", "soft", "--soft").output
    assert outcome(gw.chat(path="/soft/v1")) == "stale"
    done = refrain("cache", "purge", "--all", "--json")
    assert json.loads(last_line(done))["purged"] >= 1
    assert outcome(gw.chat(path="/rr/v1")) == "miss"


def test_a_tenants_admin_purges_its_own(gw: Running, refrain: Refrain) -> None:
    gw.chat(key=ALICE)
    gw.chat(key=EVE)
    assert "1 entry is gone." in refrain("cache", "purge", "--all", key=EVE).output
    done = refrain("cache", "purge", "--tenant", "acme", key=EVE)
    assert done.exit_code == 1
    assert "403" in done.output
    assert outcome(gw.chat(key=ALICE)) == "exact"


@pytest.mark.parametrize("args", [[], ["--soft"], ["--all", "--tag", "red"], ["--dry-run"]])
def test_a_purge_says_what(refrain: Refrain, args: list[str]) -> None:
    done = refrain("cache", "purge", *args)
    assert done.exit_code == 1
    assert "--all" in done.output


def test_what_the_gateway_refuses_is_said(refrain: Refrain) -> None:
    done = refrain("cache", "purge", "--older-than", "60")
    assert done.exit_code == 1
    assert "60s" in done.output  # how to write it


def test_keys_are_listed_and_revoked(gw: Running, refrain: Refrain) -> None:
    id = digest_key(ALICE).hex()[:12]
    shown = refrain("keys", "list").output
    assert id in shown
    assert "tenant_admin" in shown
    assert ALICE not in shown
    assert "revoked" not in shown
    assert gw.chat(key=ALICE).status_code == 200
    done = refrain("keys", "revoke", id)
    assert done.exit_code == 0, done.output
    assert id in done.output
    assert "keeps nothing on disk" in done.output
    assert gw.chat(key=ALICE).status_code == 401
    assert "revoked" in refrain("keys", "list").output
    assert json.loads(refrain("keys", "list", "--json", key=EVE).output)["keys"][0]["user"] == "eve"
    assert json.loads(last_line(refrain("keys", "revoke", digest_key(BOB).hex(), "--json"))) == {
        "revoked": digest_key(BOB).hex()[:12],
        "durable": False,
    }
    assert refrain("keys", "revoke", "0" * 12).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", [("cache", "stats"), ("cache", "purge", "--all"), ("keys", "list")])
def test_who_may_not_is_told_what_is_needed(refrain: Refrain, command: tuple[str, ...]) -> None:
    for key in (None, "wrong"):
        done = refrain(*command, key=key)
        assert done.exit_code == 1
        assert "REFRAIN_KEY" in done.output
    done = refrain(*command, key=ALICE)
    assert done.exit_code == 1
    assert "403" in done.output
    done = refrain(*command, "--json", url=f"http://127.0.0.1:{free_port()}")
    assert done.exit_code == 1
    assert "refrain serve" in json.loads(done.output)["error"]
