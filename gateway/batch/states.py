"""How a batch goes from one state to the next. What cannot be leaves it as it is."""

from collections.abc import Sequence

from msgspec.structs import replace

from gateway.batch.records import ENDED, BatchRecord, End, Result, State


def was_accepted(batch: BatchRecord) -> bool:
    """Whether it owes a result for each of its lines."""
    return "in_progress" in batch.times


def accepted(batch: BatchRecord, total: int, model: str | None, at: float) -> BatchRecord:
    return replace(_moved(batch, "in_progress", at), total=total, model=model) if batch.state == "validating" else batch


def refused(batch: BatchRecord, at: float) -> BatchRecord:
    return _moved(batch, "failed", at) if batch.state == "validating" else batch


def being_cancelled(batch: BatchRecord, at: float) -> BatchRecord:
    return batch if batch.state in ENDED or batch.state == "cancelling" else _moved(batch, "cancelling", at)


def counted(batch: BatchRecord, results: Sequence[Result]) -> BatchRecord:
    good = sum(result.good for result in results)
    return replace(
        batch,
        completed=batch.completed + good,
        failed=batch.failed + len(results) - good,
        usage=sum((result.usage for result in results), batch.usage),
    )


def finalizing(batch: BatchRecord, end: End, at: float) -> BatchRecord:
    return _moved(batch, "finalizing", at) if batch.state == "in_progress" and end == "completed" else batch


def ended(batch: BatchRecord, end: End, at: float, output: str | None, error: str | None) -> BatchRecord:
    """One that is being cancelled ends so, since that is what its owner has been told."""
    if batch.state in ENDED:
        return batch
    state: State = "cancelled" if batch.state == "cancelling" else end
    return replace(_moved(batch, state, at), output_file=output, error_file=error)


def _moved(batch: BatchRecord, state: State, at: float) -> BatchRecord:
    return replace(batch, state=state, times={**batch.times, state: at})
