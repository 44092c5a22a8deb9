"""What a backend is to the gateway: something that takes a call and gives a reply, or says why not.

BackendError
  ConnectFailed      nothing was sent: refused, unreachable, no such host, TLS failure
  BackendStarting    a local engine that is not ready yet
  BackendTimeout     a phase ran over its limit (`phase`: connect, first_byte, between_chunks)
  ReplyBroken        the reply ended early or was no HTTP
  ReplyTooLarge      the reply is over what we are willing to hold
  Refused            nothing was sent, for now
    Overloaded       too many calls wait already
    CannotBeInTime   its turn would come after its deadline
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol


class BackendError(Exception):
    """A call that got no usable reply. The text is for the client: it names no URL and no secret."""


class ConnectFailed(BackendError):
    pass


class BackendStarting(BackendError):
    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BackendTimeout(BackendError):
    def __init__(self, message: str, phase: Literal["connect", "first_byte", "between_chunks"]) -> None:
        super().__init__(message)
        self.phase = phase


class ReplyBroken(BackendError):
    pass


class ReplyTooLarge(BackendError):
    pass


class Refused(BackendError):
    code: ClassVar[str]

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Overloaded(Refused):
    code = "backend_overloaded"


class CannotBeInTime(Refused):
    code = "deadline_too_short"


Priority = Literal["interactive", "batch"]
"""Interactive calls come before batch ones."""


class Turn(Protocol):
    """Whoever has a call made, and wants to know of a wait before it is sent."""

    @property
    def deadline(self) -> float | None:
        """When its answer has to begin, by perf_counter(); None where it may take as long as it takes."""
        ...

    @property
    def patient(self) -> bool:
        """Nobody sits before it: it waits as long as it takes, and whoever makes it keeps few of them waiting."""
        ...

    def waits(self) -> None:
        """It has to wait for its turn."""

    def begins(self) -> None:
        """It has waited, and is sent now."""


@dataclass(frozen=True, slots=True)
class Call:
    """One upstream request: `path` below the base URL ("chat/completions"), the JSON body as bytes, the few
    client headers that are passed on, and the query string.

    `prefix_salt`, `party` and `tenant` say of who asks what others need to know, in words that mean nothing (32
    hexadecimal digits; "": nobody in particular): whose prompts may share keys and values, who shares a backend fairly
    with the others, and which tenant's they are, as tenants take turns first. `priority` is its class: batch calls go
    when no interactive one has to wait for them. `turn` hears of a wait, which only a call that has to wait says
    anything of."""

    path: str
    body: bytes = field(repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""
    method: Literal["POST", "GET"] = "POST"
    prefix_salt: str = ""
    party: str = ""
    tenant: str = ""
    priority: Priority = "interactive"
    turn: Turn | None = field(default=None, repr=False, compare=False)


class Reply(Protocol):
    """A reply whose head has arrived. Close it on every exit; closing it early cancels the upstream's work."""

    status: int
    headers: Mapping[str, str]  # names in lower case

    async def read(self) -> bytes:
        """The whole body. Raises BackendError."""
        ...

    def chunks(self) -> AsyncGenerator[bytes, None]:
        """The body as it arrives, in pieces of any size. Raises BackendError."""
        ...

    async def aclose(self) -> None: ...


State = Literal["starting", "ready", "down"]


class Backend(Protocol):
    name: str
    revision: str
    """Everything about this backend that can change its answers (base URL, model, precision); part of the key."""
    private: tuple[str, ...]
    """Words that no client may read: its credential, its address."""

    async def start(self) -> None: ...

    async def send(self, call: Call) -> Reply:
        """Send the call and wait for the head of the reply. Any HTTP status is a Reply, not an error."""
        ...

    def state(self) -> State: ...

    @property
    def detail(self) -> str:
        """The state in words, for people: what it is doing, why it is down."""
        ...

    async def aclose(self) -> None: ...
