"""The queue before the model's thread."""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from backends.local.metrics import Metrics
from backends.local.scheduler import QueueFull, Scheduler
from backends.local.work import Cancelled, Event, Failed, Piece, Sampling, Usage, Work

WAIT = 10.0


def work(number: int) -> Work:
    return Work(prompt=(number,), sampling=Sampling(), n=1, max_tokens=1, stops=())


class Model:
    """Stands in for the model: one piece, then it goes on only when the test says so."""

    def __init__(self) -> None:
        self.go_on = threading.Semaphore(0)

    def __call__(self, job: Work, cancelled: Callable[[], bool]) -> Iterator[Event]:
        if job.prompt[0] < 0:
            raise RuntimeError(f"about {job}")
        yield Piece(0, str(job.prompt[0]))
        while not self.go_on.acquire(timeout=0.01):
            if cancelled():
                raise Cancelled
        yield Usage(1, 1)


@contextmanager
def running(model: Model, log: list[str] | None = None, max_queue: int = 2) -> Iterator[tuple[Scheduler, Metrics]]:
    metrics = Metrics()
    scheduler = Scheduler(model, max_queue=max_queue, metrics=metrics, log=(log if log is not None else []).append)
    try:
        yield scheduler, metrics
    finally:
        scheduler.close(WAIT)


def waiting(metrics: Metrics) -> str:
    return next(line for line in metrics.render().decode().splitlines() if line.startswith("refrain_engine_waiting"))


def test_first_come_first_served_and_one_at_a_time() -> None:
    model, events = Model(), queue.Queue[tuple[int, Event]]()
    with running(model) as (scheduler, _):
        for number in (1, 2, 3):
            scheduler.submit(work(number), lambda event, number=number: events.put((number, event)))
        seen = [events.get(timeout=WAIT)]
        assert events.empty()  # 2 and 3 wait
        for _ in range(3):
            model.go_on.release()
        seen += [events.get(timeout=WAIT) for _ in range(5)]
    assert seen == [(number, event) for number in (1, 2, 3) for event in (Piece(0, str(number)), Usage(1, 1))]


def test_a_full_queue_refuses() -> None:
    model, started = Model(), queue.Queue[Event]()
    with running(model, max_queue=2) as (scheduler, metrics):
        scheduler.submit(work(1), started.put)
        started.get(timeout=WAIT)
        scheduler.submit(work(2), started.put)
        scheduler.submit(work(3), started.put)
        assert waiting(metrics).endswith(" 2.0")
        with pytest.raises(QueueFull):
            scheduler.submit(work(4), started.put)


def test_with_no_queue_an_idle_model_still_takes_one() -> None:
    model, events = Model(), queue.Queue[Event]()
    with running(model, max_queue=0) as (scheduler, _):
        scheduler.submit(work(1), events.put)
        events.get(timeout=WAIT)
        with pytest.raises(QueueFull):
            scheduler.submit(work(2), events.put)


def test_cancelling_a_waiting_request_frees_its_place_at_once() -> None:
    model, first, second = Model(), queue.Queue[Event](), queue.Queue[Event]()
    with running(model) as (scheduler, metrics):
        scheduler.submit(work(1), first.put)
        first.get(timeout=WAIT)
        job = scheduler.submit(work(2), second.put)
        scheduler.cancel(job)
        scheduler.cancel(job)
        assert second.get(timeout=WAIT) == Failed(cancelled=True)
        assert waiting(metrics).endswith(" 0.0")
        model.go_on.release()
        assert first.get(timeout=WAIT) == Usage(1, 1)
        assert second.empty()


def test_cancelling_the_running_request_lets_the_next_one_start() -> None:
    model, first, second = Model(), queue.Queue[Event](), queue.Queue[Event]()
    with running(model) as (scheduler, _):
        job = scheduler.submit(work(1), first.put)
        first.get(timeout=WAIT)
        scheduler.submit(work(2), second.put)
        scheduler.cancel(job)
        assert first.get(timeout=WAIT) == Failed(cancelled=True)
        assert second.get(timeout=WAIT) == Piece(0, "2")


def test_an_error_ends_one_request_and_its_text_is_not_logged() -> None:
    model, log, events = Model(), list[str](), queue.Queue[Event]()
    with running(model, log) as (scheduler, _):
        scheduler.submit(work(-1), events.put)
        assert events.get(timeout=WAIT) == Failed(cancelled=False)
        scheduler.submit(work(1), events.put)
        assert events.get(timeout=WAIT) == Piece(0, "1")
    assert "RuntimeError" in log[0]
    assert "test_scheduler.py" in log[0]  # where it happened
    assert "Work(" not in "".join(log)


def test_closing_ends_what_runs_and_what_waits() -> None:
    model, events = Model(), [queue.Queue[Event]() for _ in range(2)]
    metrics = Metrics()
    scheduler = Scheduler(model, max_queue=2, metrics=metrics, log=print)
    for number, target in enumerate(events):
        scheduler.submit(work(number), target.put)
    events[0].get(timeout=WAIT)
    scheduler.close(WAIT)
    assert [target.get(timeout=WAIT) for target in events] == [Failed(cancelled=True)] * 2
