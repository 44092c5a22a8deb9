"""The queue between event loop and writer: order, look-ups, and when it hands things out."""

import threading
import time

import pytest

from cache.match import Match
from cache.stores.base import StoreUnavailable
from cache.stores.sqlite_queue import Flush, Note, Op, Purge, Put, Touch, WriteQueue, batches
from tests.contract.stores import key_of, make_entry, make_question

A, B = key_of("a"), key_of("b")


def put(name: str, body: bytes = b"") -> Put:
    return Put(key_of(name), make_entry(name, body=body))


def note(name: str) -> Note:
    return Note(key_of(name), make_question(name))


def take_now(queue: WriteQueue) -> list[Op]:
    ops = queue.take(gather=0, idle=0)
    assert ops is not None
    return ops


def test_things_come_out_in_the_order_they_went_in() -> None:
    queue = WriteQueue()
    ops: list[Op] = [put("a"), Purge(Match(), soft=False, dry_run=False), put("a"), note("a"), Touch(A), Flush()]
    for op in ops:
        queue.add(op)
    assert take_now(queue) == ops
    assert take_now(queue) == []


def test_a_change_is_pending_until_it_is_finished() -> None:
    queue = WriteQueue()
    change = put("a")
    queue.add(change)
    assert queue.pending(A) is change
    ops = take_now(queue)
    assert queue.pending(A) is change, "taken is not written"
    queue.finish(ops)
    assert queue.pending(A) is None


def test_finishing_an_older_change_leaves_the_newer_one_pending() -> None:
    queue = WriteQueue()
    queue.add(put("a", b"old"))
    being_written = take_now(queue)
    newer = put("a", b"new")
    queue.add(newer)
    queue.finish(being_written)
    assert queue.pending(A) is newer


def test_bytes_count_from_adding_to_finishing() -> None:
    queue = WriteQueue()
    queue.add(put("a", b"x" * 1000))
    queue.add(Put(B, None))
    before = queue.bytes
    assert before > 1000
    queue.add(note("a"))
    assert queue.bytes > before + 1536, "the vector counts"
    queue.add(Note(B, None))
    ops = take_now(queue)
    assert queue.bytes > 1000
    queue.finish(ops)
    assert queue.bytes == 0


def test_what_nobody_waits_for_is_gathered() -> None:
    queue = WriteQueue()
    queue.add(put("a"))
    later = threading.Timer(0.05, queue.add, [put("b")])
    later.start()
    ops = queue.take(gather=0.5, idle=60)
    later.join()
    assert ops is not None
    assert [op.key for op in ops if isinstance(op, Put)] == [A, B]


@pytest.mark.parametrize("op", [Flush(), Purge(Match(), soft=False, dry_run=True)])
@pytest.mark.parametrize("first", [True, False])
def test_what_somebody_waits_for_comes_at_once(op: Op, first: bool) -> None:
    queue = WriteQueue()
    if not first:
        queue.add(put("a"))
    later = threading.Timer(0.05, queue.add, [op])
    later.start()
    started = time.monotonic()
    ops = queue.take(gather=60, idle=60)
    later.join()
    assert ops is not None
    assert ops[-1] is op
    assert time.monotonic() - started < 30


def test_waking_hands_out_nothing_at_once() -> None:
    queue = WriteQueue()
    threading.Timer(0.05, queue.wake).start()
    assert queue.take(gather=60, idle=60) == []


def test_a_closed_queue_refuses_but_hands_out_the_rest() -> None:
    queue = WriteQueue()
    change = put("a")
    queue.add(change)
    queue.close()
    with pytest.raises(StoreUnavailable):
        queue.add(put("b"))
    assert queue.take(gather=60, idle=60) == [change]
    assert queue.take(gather=60, idle=60) is None


def test_a_note_changes_nothing_that_is_pending() -> None:
    queue = WriteQueue()
    change = put("a")
    queue.add(change)
    noted = note("a")
    queue.add(noted)
    assert queue.pending(A) is change
    assert take_now(queue) == [change, noted]
    queue.finish([noted])
    assert queue.pending(A) is change


def test_batches_hold_all_in_order_and_are_bounded() -> None:
    ops: list[Op] = [Touch(key_of(f"{n}")) for n in range(25)]
    assert [list(batch) for batch in batches(ops, 10)] == [ops[:10], ops[10:20], ops[20:]]
    assert [list(batch) for batch in batches(ops[:10], 10)] == [ops[:10]]
    assert list(batches([], 10)) == [[]], "the idle writer has something to clean up"


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        ("p:a n:a", [2]),
        ("t:x p:a n:a", [3]),
        ("p:a p:b n:a n:b t:c", [4, 1]),
        ("t:x p:a n:b n:a", [2, 2]),
        ("t:x t:y n:a n:a n:a", [2, 2, 1]),
        ("p:a t:x t:y n:a", [2, 2]),
    ],
)
def test_a_note_goes_with_the_put_that_it_follows(names: str, sizes: list[int]) -> None:
    """Puts, notes and touches, in batches of two."""
    made: dict[str, Op] = {}
    for name in "abcxy":
        made |= {f"p:{name}": put(name), f"n:{name}": note(name), f"t:{name}": Touch(key_of(name))}
    ops = [made[name] for name in names.split()]
    cut = list(batches(ops, 2))
    assert [op for batch in cut for op in batch] == ops
    assert [len(batch) for batch in cut] == sizes
