"""A sketch of a request: a short digest of each component of its key, so that two requests can be told apart by name.

Digests are keyed by a secret of this process and eight bytes long: outside of it they say nothing of what was asked.
"""

from functools import lru_cache
from hashlib import blake2b
from struct import unpack

from gateway.ask import Ask
from gateway.errors import shorten
from gateway.normalize import canonical_parts

SIZE = 8
"""Bytes of a digest."""
MAX_FIELDS = 48
"""Fields of a body that have a component of their own; what comes after these, by name, is one."""
MAX_TURNS = 128
"""Turns that have a component of their own, the last one beside them; what comes between is one."""
MAX_NAME = 48
"""Characters that are left of a name that a client has invented."""
FIXED = ("endpoint", "endpoint settings", "api", "model", "backend")
"""Components that every request has."""
TOOLS = frozenset({"tools", "functions"})
SYSTEM = ("system", "developer")
_RENAMED = {"max_completion_tokens": "max_tokens"}  # in the canonical form the two are one; most say the shorter


class Sketch:
    """Of the request with this `key`: `names` of components and `digests` of the same, one after the other; `turns` are
    those of the turns after the system prompt, the last one too, which `asks` names."""

    __slots__ = ("asks", "digests", "key", "names", "turns")

    def __init__(self, key: bytes, names: tuple[str, ...], digests: bytes, turns: bytes, asks: str) -> None:
        self.key = key
        self.names = names
        self.digests = digests
        self.turns = turns
        self.asks = asks

    @property
    def last(self) -> bytes:
        """The digest of the last turn."""
        return self.turns[-SIZE:]

    @property
    def before(self) -> bytes:
        """Those of the turns before that."""
        return self.turns[:-SIZE]


def sketch(ask: Ask, secret: bytes) -> Sketch:
    """Linear in the body: for a large one in a thread."""
    endpoint, backend = ask.endpoint, ask.backend
    fields, said = canonical_parts(ask.api, ask.body, text=endpoint.config.normalize)
    del fields["model"]  # as text it is among the fixed ones
    found: dict[str, bytes] = {}
    for number, name in enumerate(sorted(fields)):
        shown = _shown(name) if number < MAX_FIELDS else "other parameters"
        value = b"%b\0%b" % (name.encode(), fields[name])  # JSON holds no such byte
        # Two names may look the same when they are cut.
        found[shown] = _digest(secret, value if shown not in found else found[shown] + value)
    for name, text in ask.headers:
        found[f"header {name}"] = _digest(secret, text.encode())
    if ask.query:
        found["query api-version"] = _digest(secret, ask.query.encode())
    if ask.grounds is not None:
        found["documents"] = _digest(secret, b"".join(ask.grounds.digests))
    turns = [_digest(secret, turn) for turn in said]
    first = _first_turn(ask)
    if first:
        found["system prompt"] = _digest(secret, b"".join(turns[:first]))
    turns = turns[first:]
    if len(turns) > MAX_TURNS + 1:
        between = _digest(secret, b"".join(turns[MAX_TURNS - 1 : -1]))
        turns = [*turns[: MAX_TURNS - 1], between, turns[-1]]
    fixed = _fixed(secret, endpoint.name, endpoint.settings, ask.api, ask.model, backend.name, backend.revision)
    return Sketch(ask.key, (*FIXED, *found), b"".join((fixed, *found.values())), b"".join(turns), _asks(ask))


@lru_cache(maxsize=512)
def _fixed(secret: bytes, endpoint: str, settings: bytes, api: str, model: str, backend: str, revision: str) -> bytes:
    values = (endpoint.encode(), settings, api.encode(), model.encode(), f"{backend}\0{revision}".encode())
    return b"".join(_digest(secret, value) for value in values)


def _digest(secret: bytes, value: bytes) -> bytes:
    return blake2b(secret + value, digest_size=SIZE).digest()  # the secret in front: a key would cost another block


def differs(mine: Sketch, other: Sketch) -> tuple[str, ...]:
    """Names of the components that are not the same, in the order of the key; () only for one and the same key."""
    out = []
    if mine.digests != other.digests or mine.names != other.names:
        ours, theirs = _by_name(mine), _by_name(other)
        out = [name for name in ours if ours[name] != theirs.get(name)]
        out += [name for name in theirs if name not in ours]
    if mine.before != other.before:
        a, b = pieces(mine.before), pieces(other.before)
        longer = range(max(len(a), len(b)))
        out += [_turn(at) for at in longer if at >= len(a) or at >= len(b) or a[at] != b[at]]
    if mine.last != other.last:
        out.append(mine.asks)
    return tuple(out)


def continues(mine: Sketch, other: Sketch) -> bool:
    """Is the other request an earlier turn of the same conversation?"""
    return (
        len(mine.turns) > len(other.turns)
        and mine.turns.startswith(other.turns)
        and mine.digests == other.digests
        and mine.names == other.names
    )


def _by_name(s: Sketch) -> dict[str, int]:
    return dict(zip(s.names, pieces(s.digests), strict=True))


def pieces(digests: bytes) -> tuple[int, ...]:
    """Digests that stand one after the other, as numbers."""
    return unpack(f"{len(digests) // SIZE}Q", digests)


def _turn(at: int) -> str:
    return f"earlier turn {at + 1}" if at < MAX_TURNS - 1 else f"earlier turns from {MAX_TURNS} on"


def _shown(name: str) -> str:
    return "tools" if name in TOOLS else f"parameter {shorten(_RENAMED.get(name, name), MAX_NAME)}"


def _first_turn(ask: Ask) -> int:
    """How many messages are the system prompt: those of its roles that all others come after."""
    if ask.api != "chat":
        return 0
    messages = ask.body["messages"]
    for number, message in enumerate(messages):
        if message.get("role") not in SYSTEM:
            return min(number, len(messages) - 1)
    return len(messages) - 1


def _asks(ask: Ask) -> str:
    if ask.api != "chat":
        return "prompt"
    return "question" if ask.body["messages"][-1].get("role") == "user" else "last turn"
