"""Interactive before batch, step by step: who makes way, that it costs batch requests nothing but time, and that
neither is refused for the other's sake."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.base import Priority
from backends.local.kv import GROWTH
from backends.local.opening import Opener
from backends.local.plan import BATCH_BESIDE, BUSY_CHUNK
from backends.local.prefix import BLOCK
from backends.local.runner import Runner
from backends.local.work import Failed, QueueFull, Sampling, Usage
from tests.backends.local.stepping import Answer, Stage, prompt
from tests.backends.local.tiny import Oracle, llama, tokenizer_of

END = 0
OTHER: dict[Priority, Priority] = {"interactive": "batch", "batch": "interactive"}


@pytest.fixture(scope="module")
def runner(tiny_gguf: Path) -> Runner:
    return Runner(llama(tiny_gguf))


@pytest.fixture(scope="module")
def opener(tiny_gguf: Path) -> Opener:
    return Opener(tokenizer_of(tiny_gguf), frozenset({END}), 99)


@pytest.fixture(scope="module")
def oracle(tiny_gguf: Path) -> Iterator[Oracle]:
    oracle = Oracle(llama(tiny_gguf))
    yield oracle
    assert oracle.share > 0.9


def preempted(stage: Stage, priority: Priority) -> int:
    return int(stage.metrics.preempted.labels(priority)._value.get())


def waiting(stage: Stage, priority: Priority) -> int:
    return int(stage.metrics.waiting.labels(priority)._value.get())


def gone_on(answer: Answer, made: int) -> bool:
    return len(answer.tokens[0]) > made


def check_whole(answers: list[Answer], oracle: Oracle) -> None:
    for answer in answers:
        assert isinstance(answer.end, Usage)
        assert answer.end.completion == answer.work.max_tokens * answer.work.n
        oracle.check(list(answer.work.prompt), answer.tokens[0])


def test_with_every_place_taken_it_is_in_the_next_step(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener, max_running=4) as stage:
        batch = [stage.ask(prompt(20, first), 40, priority="batch") for first in range(6)]
        stage.step(5)
        assert stage.taken("batch") == [1, 1, 1, 1]
        new = stage.ask(prompt(20, 50), 5)
        stage.step()  # this one stood there already
        assert stage.taken("interactive") == [20]
        assert preempted(stage, "batch") == 1
        stage.step()
        assert new.begun is not None
        while stage.step():
            stage.check_held()
            stage.check_order()
        assert preempted(stage, "interactive") == 0
    check_whole([new, *batch], oracle)


def test_with_all_memory_taken_it_is_in_the_next_step(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener, kv_tokens=6 * GROWTH) as stage:
        batch = [stage.ask(prompt(50, first), 70, priority="batch") for first in range(3)]
        stage.step(5)
        assert stage.running == 3
        new = stage.ask(prompt(3 * GROWTH, 50), 5)
        stage.step()
        assert stage.taken("interactive")
        assert 0 < preempted(stage, "batch") < 3  # no more than need be
        while stage.step():
            stage.check_held()
            stage.check_order()
    check_whole([new, *batch], oracle)


def test_growing_puts_out_batch_whoever_came_last(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener, kv_tokens=3 * GROWTH) as stage:
        batch = stage.ask(prompt(20), 200, priority="batch")
        stage.step(2)
        interactive = stage.ask(prompt(20, 3), 150)
        while stage.step():
            stage.check_held()
        assert (preempted(stage, "batch"), preempted(stage, "interactive")) == (1, 0)
    check_whole([batch, interactive], oracle)


def test_the_latest_makes_way_and_is_back_before_all_others(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=3) as stage:
        batch = [stage.ask(prompt(20, first), 40, priority="batch", party=str(first)) for first in range(5)]
        stage.step(3)
        new = stage.ask(prompt(20, 50), 3, n=2)
        stage.step(2)
        made = [len(answer.tokens[0]) for answer in batch]
        while new.end is None:
            stage.step()
        assert [gone_on(answer, count) for answer, count in zip(batch, made, strict=True)] == [True, *[False] * 4]
        stage.step(2)
        assert [gone_on(answer, count) for answer, count in zip(batch, made, strict=True)] == [
            *[True] * 3,
            *[False] * 2,
        ]
        stage.finish()


def test_what_was_computed_is_kept(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1) as stage:
        batch = stage.ask(prompt(40), 30, priority="batch")
        stage.step(25)
        new = stage.ask(prompt(20, 50), 1)
        while new.end is None:
            stage.step()
        (again,) = stage.taken("batch")
        assert again <= BLOCK
        stage.finish()
        assert isinstance(batch.end, Usage)
        assert (batch.end.completion, batch.end.cached) == (30, 0)


def test_chance_goes_on_where_it_was(runner: Runner, opener: Opener) -> None:
    sampling = Sampling(temperature=1.0, top_p=0.95, seed=11)
    with Stage(runner, opener) as stage:
        alone = stage.ask(prompt(20), 40, n=2, sampling=sampling)
        stage.finish()
    with Stage(runner, opener, max_running=2) as stage:
        interrupted = stage.ask(prompt(20), 40, n=2, sampling=sampling, priority="batch")
        for first in range(3):
            stage.step(7)
            stage.ask(prompt(20, 50 + first), 3, n=2)
        stage.finish()
        assert preempted(stage, "batch") > 3
    assert interrupted.tokens == alone.tokens
    assert interrupted.text(0) == alone.text(0)


def test_batch_takes_little_beside_an_interactive_answer_and_comes_to_its_end(
    runner: Runner, opener: Opener, oracle: Oracle
) -> None:
    with Stage(runner, opener) as stage:
        interactive = stage.ask(prompt(20, 50), 300)
        stage.step(2)
        batch = [stage.ask(prompt(30, first), 10, priority="batch") for first in range(8)]
        sizes = []
        while any(answer.end is None for answer in batch):
            assert stage.step()
            sizes.append(sum(stage.taken("batch")))
            assert stage.taken("interactive") == [1]
        assert max(sizes) == BATCH_BESIDE
        assert interactive.end is None
        stage.cancel(interactive)
        stage.finish()
    check_whole(batch, oracle)


def test_an_interactive_prompt_is_read_beside_batch_as_without(runner: Runner, opener: Opener) -> None:
    steps = []
    for beside in (0, 8):
        with Stage(runner, opener) as stage:
            for first in range(beside):
                stage.ask(prompt(20, first), 200, priority="batch")
            if beside:
                stage.step(3)
            stage.ask(prompt(600, 50), 2)
            stage.step(1 if beside else 0)  # one stood there already
            taken = []
            while size := sum(stage.taken("interactive")):
                taken.append(size)
                stage.step()
            steps.append(taken)
            stage.let_go()
    assert steps[0] == steps[1]


def test_a_step_for_batch_alone_is_short(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener) as stage:
        stage.ask(prompt(1000), 1, priority="batch")
        stage.finish()
        assert max(map(sum, stage.runner.steps)) == BUSY_CHUNK


@pytest.mark.parametrize("priority", ["interactive", "batch"])
def test_only_batch_waits_for_a_beginning_that_batch_computes(
    runner: Runner, opener: Opener, oracle: Oracle, priority: Priority
) -> None:
    with Stage(runner, opener) as stage:
        first = stage.ask(prompt(1000), 2, priority="batch")
        stage.step(2)
        second = stage.ask([*prompt(1000), 5, 6, 7], 2, priority=priority)
        stage.step()
        assert (len(stage.taken("interactive")), len(stage.taken("batch"))) == (
            (1, 1) if priority == "interactive" else (0, 1)
        )
        stage.finish()
        assert second.begun is not None
        assert second.begun.cached == (3 * BUSY_CHUNK if priority == "interactive" else 1000 // BLOCK * BLOCK)
    check_whole([first, second], oracle)


def test_an_interactive_prompt_is_not_read_sooner_because_batch_waits_for_it(runner: Runner, opener: Opener) -> None:
    taken = []
    for beside in (0, 1):
        with Stage(runner, opener, kv_tokens=16384) as stage:
            stage.ask(prompt(5, 1), 20)
            stage.step(2)
            for tokens in (prompt(1500, 10), prompt(32, 90) + prompt(900, 20), prompt(45, 40)):
                stage.ask(tokens, 2)
            for number in range(beside):
                stage.ask(prompt(32, 90) + prompt(8, number), 2, priority="batch")
            stage.step()
            taken.append(stage.taken("interactive"))
            stage.let_go()
    assert taken[0] == taken[1]


@pytest.mark.parametrize("priority", ["interactive", "batch"])
def test_a_full_queue_refuses_its_own_priority_only(runner: Runner, opener: Opener, priority: Priority) -> None:
    other = OTHER[priority]
    with Stage(runner, opener, max_running=1, max_queue=2) as stage:
        stage.ask(prompt(5), 3)
        stage.settle()
        for first in (3, 4):
            stage.ask(prompt(5, first), 1, priority=priority)
        with pytest.raises(QueueFull):
            stage.ask(prompt(5, 5), 1, priority=priority)
        assert (waiting(stage, priority), waiting(stage, other)) == (2, 0)
        stage.ask(prompt(5, 6), 1, priority=other)
        assert (waiting(stage, priority), waiting(stage, other)) == (2, 1)
        stage.finish()
        assert (waiting(stage, priority), waiting(stage, other)) == (0, 0)


def test_without_a_queue_batch_makes_way_for_one(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1, max_queue=0) as stage:
        stage.ask(prompt(5), 10, priority="batch")
        stage.step(2)
        stage.ask(prompt(5, 3), 2)
        with pytest.raises(QueueFull):
            stage.ask(prompt(5, 4), 2)
        with pytest.raises(QueueFull):
            stage.ask(prompt(5, 4), 2, priority="batch")
        stage.finish()


def test_nobody_makes_way_for_what_would_not_fit_all_the_same(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, kv_tokens=6 * GROWTH) as stage:
        stage.ask(prompt(20), 100, priority="batch")
        stage.ask(prompt(3 * GROWTH, 3), 20)
        stage.step(5)
        later = stage.ask(prompt(3 * GROWTH, 4), 1)  # has to wait for the other interactive one
        never = stage.ask(prompt(7 * GROWTH, 5), 1)
        stage.step(2)
        assert later.begun is None
        assert len(stage.taken("batch")) == 1
        assert preempted(stage, "batch") == 0
        stage.finish()
        assert isinstance(later.end, Usage)
        assert never.end == Failed("out_of_memory")


def test_each_priority_is_fair_to_its_parties(runner: Runner, opener: Opener) -> None:
    """What a party has of the other priority does not count."""
    with Stage(runner, opener, max_running=3) as stage:
        stage.ask(prompt(5, 40), 60, party="a")
        stage.ask(prompt(5, 41), 60, party="a")
        stage.ask(prompt(5, 42), 3, party="c", priority="batch")
        stage.settle()
        first = stage.ask(prompt(5, 43), 2, party="a", priority="batch")
        stage.ask(prompt(5, 44), 2, party="b", priority="batch")
        while first.begun is None:
            assert stage.step()
        assert stage.answers[-1].begun is None
        stage.let_go()


def test_one_that_was_put_out_can_be_cancelled(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1) as stage:
        batch = stage.ask(prompt(20), 40, priority="batch")
        stage.step(5)
        stage.ask(prompt(20, 3), 10)
        stage.step(2)
        stage.cancel(batch)
        stage.step()
        assert batch.end == Failed("cancelled")
        stage.finish()
