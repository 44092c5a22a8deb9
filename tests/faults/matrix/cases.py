"""What the matrix crosses, and what is written down of each case: values only."""

import itertools
from dataclasses import dataclass
from typing import Literal

Mode = Literal["stream", "request_response"]
Form = Literal["stream", "json"]
End = Literal["whole", "broken off", "error", "cut off"]

BEGINNING = "one "
"""What of the answer has arrived when a fault in mid-stream happens."""

Forms = tuple[Form, Form, Form]
"""The leader's, then those of the two who join, in their order."""
FORMS: dict[Mode, tuple[Forms, ...]] = {
    "stream": (("stream", "stream", "json"), ("stream", "json", "stream"), ("json", "json", "stream")),
    "request_response": (("stream", "stream", "json"), ("json", "json", "stream")),
}


def answer_text(call: int) -> str:
    """What the upstream answers to the first, the second ... call of a case, in characters of one to four bytes."""
    return f"{BEGINNING}call {call}: Grüße, 你好, naïve 🎵🎶!"


@dataclass(frozen=True)
class Case:
    mode: Mode
    fault: str
    leaves: bool
    """The leader's connection is closed before the fault happens."""
    forms: Forms

    def __str__(self) -> str:
        leader = "leader leaves" if self.leaves else "leader stays"
        return f"{self.mode}: {self.fault}: {leader}: {', '.join(self.forms)}"


def cases(mode: Mode, faults: list[str]) -> list[Case]:
    return [Case(mode, *rest) for rest in itertools.product(faults, (False, True), FORMS[mode])]


@dataclass(frozen=True)
class Got:
    """What one client got. `whole`: a JSON answer, or a stream up to its `[DONE]`; `broken off`: a stream that ends
    with an error event and no `[DONE]`; `error`: an error instead of an answer; `cut off`: a body without its end."""

    outcome: str
    status: int
    end: End
    code: str | None = None
    text: str = ""
    retry_after: str | None = None


@dataclass(frozen=True)
class Row:
    """What happened in one case. `leader` is None when it had left; `calls` are those that reached the upstream;
    `kept`: the next identical request is a hit."""

    leader: Got | None
    first: Got
    second: Got
    calls: int
    kept: bool
