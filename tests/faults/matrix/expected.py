"""What the matrix must show, from DESIGN 6 ("Joining", "Stored, or not"), not from what was seen.

- A failure before anything of the answer has arrived: the leader gets it; of those who wait, the first takes over with
  one second call and says `miss`; a second failure goes to all. Any 4xx goes to all at once.
- A failure after that goes to all, and no second call is made: a stream ends with an error event and without
  `[DONE]`, a JSON client gets a status. In `request_response` mode an answer arrives whole or not at all.
- A leader that leaves changes nothing for the others.
- Only whole answers are kept.
"""

from dataclasses import dataclass
from typing import Literal

from tests.faults.matrix.cases import BEGINNING, Case, Form, Got, Mode, Row, answer_text


@dataclass(frozen=True)
class Rule:
    """`before`: nothing has arrived, one takes over; `again`: and fails as well; `to all`: a 4xx; `after`: something
    has arrived; `well`: nothing is wrong; `not kept`: nothing is wrong, but the answer may not be reused. `status` and
    `code` are those of an error that stands in place of an answer."""

    when: Literal["before", "again", "to all", "after", "well", "not kept"]
    status: int = 200
    code: str | None = None
    retry_after: str | None = None
    reached: int | None = None
    """Calls that reach the upstream, where the fault keeps them from it."""


UNREACHABLE = (502, "backend_unreachable")
BROKEN = (502, "backend_reply_broken")
ITS_ERROR = (502, "out_of_memory")
UPSTREAMS = (503, "backend_error")
NO_FIRST_BYTE = (504, "backend_timeout_first_byte")
STOPPED = (504, "backend_timeout_between_chunks")

EARLY: dict[str, Rule] = {
    "connection refused, and again": Rule("again", *UNREACHABLE, reached=0),
    "connection reset": Rule("before", *BROKEN),
    "connection reset, and again": Rule("again", *BROKEN),
    "400": Rule("to all", 400, "context_length_exceeded"),
    "429": Rule("to all", 429, "rate_limit_exceeded", retry_after="7"),
    "503": Rule("before", *UPSTREAMS),
    "503, and again": Rule("again", *UPSTREAMS),
    "silence before the first byte": Rule("before", *NO_FIRST_BYTE),
    "silence before the first byte, and again": Rule("again", *NO_FIRST_BYTE),
}

RULES: dict[Mode, dict[str, Rule]] = {
    "stream": {
        **EARLY,
        "cut after the head": Rule("before", *BROKEN),
        "an error event comes first": Rule("before", *ITS_ERROR),
        "silence in mid-stream": Rule("after", *STOPPED),
        "cut in mid-stream": Rule("after", *BROKEN),
        "an error event in mid-stream": Rule("after", *ITS_ERROR),
        "`[DONE]` before the finish_reason": Rule("after", *BROKEN),
        "an event that is no JSON": Rule("after", *BROKEN),
        "characters split by the network": Rule("well"),
    },
    "request_response": {
        **EARLY,
        "silence in mid-answer": Rule("before", *STOPPED),
        "cut in mid-answer": Rule("before", *BROKEN),
        "an error object in place of the answer": Rule("before", *ITS_ERROR),
        "an answer without a finish_reason": Rule("not kept"),
        "an answer that is no JSON": Rule("before", *BROKEN),
        "characters split by the network": Rule("well"),
    },
}


def expected(case: Case) -> Row:
    rule = RULES[case.mode][case.fault]
    leader, first, second = (client(rule, form, who) for who, form in enumerate(case.forms))
    calls = 2 if rule.when in ("before", "again") else 1
    return Row(
        leader=None if case.leaves else leader,
        first=first,
        second=second,
        calls=calls if rule.reached is None else rule.reached,
        kept=rule.when in ("before", "well"),
    )


def client(rule: Rule, form: Form, who: int) -> Got:
    """What the leader (0), the first (1) or the second (2) of those who joined gets."""
    outcome = "miss" if who == 0 or (who == 1 and rule.when in ("before", "again")) else "joined"
    if rule.when in ("well", "not kept"):
        return Got(outcome, 200, "whole", text=answer_text(1))
    if rule.when == "before" and who > 0:
        return Got(outcome, 200, "whole", text=answer_text(2))
    if rule.when == "after" and form == "stream":
        return Got(outcome, 200, "broken off", rule.code, BEGINNING)
    return Got(outcome, rule.status, "error", rule.code, retry_after=rule.retry_after)
