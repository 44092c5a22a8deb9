"""A gateway without sockets whose endpoint has a chain of scripted backends."""

from collections.abc import Mapping
from typing import Any

from gateway.ask import Ask
from gateway.config.load import parse_config
from gateway.fleet import Managed
from gateway.gate import Gate, Limits
from gateway.snapshot import Snapshot
from gateway.visit import Visit
from tests.gateway.flying import ALICE, BOB, DONE, Client, Hub, pieces
from tests.gateway.scripted import END, OPEN, ScriptedBackend, UpstreamCall

Json = dict[str, Any]
NAMES = ("one", "two", "three")
CONFIG = parse_config(
    f"""
auth: {{keys: [{{key: {ALICE}, tenant: acme, user: alice}}, {{key: {BOB}, tenant: acme, user: bob}}]}}
backends:
  one: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}
  two: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}
  three: {{kind: remote, base_url: "http://127.0.0.1:9/v1"}}
models: {{"*": one}}
endpoints:
  default: {{mode: stream, share: tenant, backend: one, fallback: [two]}}
  rr: {{mode: request_response, share: tenant, backend: one, fallback: [two]}}
  long: {{mode: stream, share: tenant, backend: one, fallback: [two, three]}}
  routed: {{mode: stream, share: tenant, fallback: [one, three]}}
  alone: {{mode: stream, share: tenant}}
  soon: {{mode: stream, share: tenant, backend: one, fallback: [two], deadline: 5s}}
  soft: {{mode: stream, share: tenant, fallback: [two], cache: {{exact: {{ttl: 60s, stale_while_revalidate: 1h}}}}}}
  old: {{mode: stream, share: tenant, fallback: [two], cache: {{exact: {{ttl: 60s, stale_if_error: 1h}}}}}}
  uncached: {{mode: stream, share: tenant, fallback: [two], cache: {{exact: off}}}}
prices: {{test-model: {{input: 1.0, output: 2.0}}}}
""",
    {},
)
FAILED = [(503, "application/json"), b"{}", END]
REJECTED = [(400, "application/json"), b'{"error": {"message": "no", "code": "theirs"}}', END]


def whole(text: str, **changes: Any) -> list[Any]:
    """A streamed answer from its head to its end."""
    return [OPEN, *pieces(text, **changes), END]


class Backends(Hub):
    """`one`, which fails, is the backend of each endpoint; `two`, which answers, stands in for it, then `three`, which
    answers too. `gate` is that of the first one."""

    def __init__(self, gate: Limits | None = None) -> None:
        super().__init__(config=CONFIG)
        self.backends = {name: ScriptedBackend() for name in NAMES}
        for name, backend in self.backends.items():
            backend.name = name
        self.backend = self.backends["one"]
        self.gate = None if gate is None else Gate("one", gate)
        self._first: Any = self.backend if self.gate is None else Managed(self.backend, self.gate)
        self.says("one", FAILED)
        self.says("two", whole("of two"))
        self.says("three", whole("of three"))

    def says(self, name: str, steps: list[Any]) -> None:
        """What this backend says to every call from now on; () is nothing by itself."""
        self.backends[name].script = lambda number: steps

    def snapshot(self) -> Snapshot:
        auth = self.identity.authenticator(self.config.auth)
        return Snapshot.of(self.config, self.generation, {**self.backends, "one": self._first}, auth)

    def made(self, name: str) -> list[UpstreamCall]:
        """The calls of this backend."""
        return self.backends[name].calls

    def counts(self) -> tuple[int, ...]:
        """How many calls each backend has had."""
        return tuple(len(self.made(name)) for name in NAMES)

    def record(self, client: Client) -> Json:
        found = self.recorder.ring.find(client.headers["x-request-id"])
        assert found is not None
        return found.as_dict()


def visit_of(hub: Backends, **more: Any) -> tuple[Visit, Ask]:
    visit, ask = hub.visit(**more)
    return visit, ask


def asked(said: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Who had failed, by a decision."""
    return [(failure["backend"], failure["error"]) for failure in said["failures"]]


__all__ = ["CONFIG", "DONE", "FAILED", "REJECTED", "Backends", "asked", "visit_of", "whole"]
