"""What the batch lane keeps: files, batches and their lines. Times are wall-clock seconds, sizes bytes."""

from typing import Literal

import msgspec

from gateway.config import Role

Url = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]
State = Literal["validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"]
End = Literal["completed", "expired", "cancelled"]
ENDED = frozenset({"failed", "completed", "expired", "cancelled"})
WINDOW = 86_400.0
"""Seconds from its creation in which a batch is to end."""
LIVES = 30 * 86_400.0
"""Seconds that a file is kept which says nothing else, as at OpenAI."""


class Owner(msgspec.Struct, frozen=True):
    """Who made it, as far as a later run needs to know. `key` is the digest of the API key in hexadecimal; empty for
    whoever came by a token, or where no key is needed."""

    tenant: str
    user: str
    permissions: tuple[str, ...] = ()
    role: Role = "member"
    key: str = ""

    @property
    def who(self) -> tuple[str, str]:
        """Whose files and batches are the same one's."""
        return self.tenant, self.user


class FileRecord(msgspec.Struct, frozen=True):
    id: str
    tenant: str
    user: str
    purpose: str
    filename: str
    size: int
    created: float
    expires: float | None = None


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with an input file; `line` counts from 1, blank lines too."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the answers that were served, as they were reported."""

    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            *(a + b for a, b in zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True))
        )


class BatchRecord(msgspec.Struct, frozen=True):
    """`endpoint` is ours, by name, `url` is OpenAI's "endpoint". `headers` and `query` come with each of its requests.
    `times` are those of the states it has been in, by their names. Unfinished lines end at `deadline`."""

    id: str
    owner: Owner
    endpoint: str
    url: Url
    input_file: str
    created: float
    deadline: float
    window: str = "24h"
    headers: tuple[tuple[str, str], ...] = ()
    query: str = ""
    metadata: dict[str, str] = {}
    output_lives: float | None = None
    state: State = "validating"
    times: dict[State, float] = {}
    model: str | None = None
    total: int = 0
    completed: int = 0
    failed: int = 0
    usage: Usage = Usage()
    output_file: str | None = None
    error_file: str | None = None


class Line(msgspec.Struct, frozen=True):
    """A request of a batch; `number` is that of its line in the file, from 1."""

    number: int
    custom_id: str
    body: bytes


class Result(msgspec.Struct, frozen=True):
    """What came of the line of this number: a line for the output file (`good`) or the error file, without its end."""

    number: int
    good: bool
    data: bytes
    usage: Usage = Usage()
