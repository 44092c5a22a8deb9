"""From which state to which a batch goes, and what it has then."""

from typing import get_args

import pytest

from gateway.batch import states
from gateway.batch.records import BatchRecord, End, State, Usage
from tests.gateway.batch.kept import bad, batch, good

ALL = get_args(State)


def at(state: State) -> BatchRecord:
    return batch(state=state, times={"in_progress": 1.0})


@pytest.mark.parametrize("state", ALL)
def test_only_what_is_validating_is_accepted_or_refused(state: State) -> None:
    before = at(state)
    accepted = states.accepted(before, 7, "m", 5.0)
    refused = states.refused(before, 5.0)
    if state != "validating":
        assert accepted is refused is before
        return
    assert (accepted.state, accepted.total, accepted.model, accepted.times) == (
        "in_progress",
        7,
        "m",
        {"in_progress": 5.0},
    )
    assert refused.state == "failed"
    assert refused.times == {"in_progress": 1.0, "failed": 5.0}


@pytest.mark.parametrize("state", ALL)
def test_what_has_not_ended_can_be_cancelled_once(state: State) -> None:
    before = at(state)
    cancelled = states.being_cancelled(before, 5.0)
    if state in ("validating", "in_progress", "finalizing"):
        assert (cancelled.state, cancelled.times["cancelling"]) == ("cancelling", 5.0)
    else:
        assert cancelled is before


@pytest.mark.parametrize("end", get_args(End))
@pytest.mark.parametrize("state", ALL)
def test_the_end(state: State, end: End) -> None:
    before = at(state)
    after = states.ended(before, end, 5.0, "file-out", None)
    if state in ("failed", "completed", "expired", "cancelled"):
        assert after is before
        return
    expected = "cancelled" if state == "cancelling" else end
    assert (after.state, after.times[expected]) == (expected, 5.0)
    assert (after.output_file, after.error_file) == ("file-out", None)
    finalizing = states.finalizing(before, end, 5.0)
    assert (finalizing is not before) == (state == "in_progress" and end == "completed")
    assert finalizing.state == (state if finalizing is before else "finalizing")


def test_results_are_added_up() -> None:
    once = states.counted(batch(completed=1, failed=1, usage=Usage(1, 1, 1, 1)), [good(1), bad(2), good(3)])
    assert (once.completed, once.failed, once.usage) == (3, 2, Usage(9, 7, 5, 3))
