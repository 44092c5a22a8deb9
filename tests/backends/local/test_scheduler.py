"""The scheduler step by step: who runs, who waits, and how each answer ends, whatever goes wrong.

The model is real, tiny and greedy; the test lets its steps through one by one."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from backends.local.kv import GROWTH, KvShape
from backends.local.opening import Opener
from backends.local.plan import BUSY_CHUNK, IDLE_CHUNK, OLDEST_SHARE
from backends.local.prefix import BLOCK
from backends.local.runner import Runner
from backends.local.work import Failed, QueueFull, Usage
from tests.backends.local.stepping import WAIT, Stage, prompt
from tests.backends.local.tiny import Oracle, llama, tokenizer_of

END = 0


@pytest.fixture(scope="module")
def runner(tiny_gguf: Path) -> Runner:
    return Runner(llama(tiny_gguf))


@pytest.fixture(scope="module")
def opener(tiny_gguf: Path, runner: Runner) -> Opener:
    return Opener(tokenizer_of(tiny_gguf), frozenset({END}), 99)


@pytest.fixture(scope="module")
def oracle(tiny_gguf: Path) -> Iterator[Oracle]:
    oracle = Oracle(llama(tiny_gguf))
    yield oracle
    assert oracle.share > 0.9


def value(stage: Stage, name: str) -> float:
    lines = stage.metrics.render().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def test_one_answer(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        answer = stage.ask(prompt(10), 5)
        stage.finish()
        oracle.check(prompt(10), answer.tokens[0])
        assert isinstance(answer.end, Usage)
        assert (answer.end.prompt, answer.end.completion, answer.end.cached) == (10, 5, 0)
        assert stage.runner.steps == [[10], [1], [1], [1], [1]]


def test_requests_join_and_leave_between_two_tokens(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        long = stage.ask(prompt(10), 12)
        stage.step(3)
        short = stage.ask(prompt(12, 5), 3)
        stage.step(1)  # this one was made before the new one came
        stage.step(3)
        assert isinstance(short.end, Usage)
        assert long.end is None
        assert stage.runner.steps[-3:] == [[1, 12], [1, 1], [1, 1]]
        stage.finish()
        oracle.check(prompt(10), long.tokens[0])
        oracle.check(prompt(12, 5), short.tokens[0])


def test_the_first_token_comes_soon_beside_a_long_prompt_and_streams(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, kv_tokens=8192) as stage:
        streams = [stage.ask(prompt(5, first), 100) for first in range(8)]
        stage.step(5)
        stage.ask(prompt(2000, 50), 2)
        stage.step(3)
        new = stage.ask(prompt(30, 70), 2)
        steps = len(stage.runner.steps)
        while new.begun is None:
            made = [len(stream.tokens[0]) for stream in streams]
            stage.step()
            assert [len(stream.tokens[0]) for stream in streams] == [count + 1 for count in made]
        assert len(stage.runner.steps) - steps <= 2  # the one that stood there already, and its own
        assert all(sum(step) <= 8 + BUSY_CHUNK for step in stage.runner.steps[5:])


def test_a_long_prompt_goes_on_whatever_comes(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener) as stage:
        long = stage.ask(prompt(500, 50), 1)
        for number in range(500 * OLDEST_SHARE // BUSY_CHUNK + 1):
            if long.begun is None:
                stage.ask(prompt(60, number % 45), 1)
                stage.step()
        assert long.begun is not None


def test_sharing_a_beginning_with_a_long_prompt_does_not_hold_up_a_short_one(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, kv_tokens=32768, max_running=64) as stage:
        stage.ask(prompt(5, 1), 400)
        stage.step(2)
        stage.ask(prompt(2000, 10), 1)  # the oldest has its share, whatever comes
        shared = prompt(32, 90)
        for number in (41, 42):
            stage.ask(prompt(50, number), 1)
        stage.ask(shared + prompt(1900, 20), 1)
        short = stage.ask(shared + prompt(8, 33), 1)
        for number in range(10):
            if short.begun is None:
                stage.ask(prompt(50, 43 + number), 1)
                stage.step()
        assert short.begun is not None


def test_at_most_so_many_run(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=3) as stage:
        answers = [stage.ask(prompt(5, first), 4) for first in range(7)]
        most = 0
        while stage.step():
            stage.check_held()
            most = max(most, stage.running)
        assert most == 3
        assert all(isinstance(answer.end, Usage) for answer in answers)


def test_a_full_queue_refuses_and_recovers(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1, max_queue=2) as stage:
        stage.ask(prompt(5), 3)
        stage.settle()
        waiting = [stage.ask(prompt(5, first), 1) for first in (3, 4)]
        with pytest.raises(QueueFull):
            stage.ask(prompt(5, 5), 1)
        stage.cancel(waiting[0])
        stage.ask(prompt(5, 6), 1)
        with pytest.raises(QueueFull):
            stage.ask(prompt(5, 7), 1)
        assert value(stage, "refrain_engine_waiting") == 2
        stage.finish()
        assert value(stage, "refrain_engine_waiting") == 0
        stage.ask(prompt(5, 8), 1)
        stage.finish()


def test_without_a_queue_an_idle_model_still_takes_one(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1, max_queue=0) as stage:
        stage.ask(prompt(5), 2)
        stage.settle()
        with pytest.raises(QueueFull):
            stage.ask(prompt(5, 3), 1)


def test_cancelling_one_that_waits_is_done_at_once(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1) as stage:
        first = stage.ask(prompt(5), 3)
        stage.settle()
        second = stage.ask(prompt(5, 3), 3)
        stage.cancel(second)
        stage.cancel(second)
        assert second.events == [Failed("cancelled")]
        stage.finish()
        assert isinstance(first.end, Usage)
        assert value(stage, "refrain_engine_ended_total") == 1


@pytest.mark.parametrize("n", [1, 3])
def test_cancelling_one_that_runs_frees_it_within_a_step(runner: Runner, opener: Opener, n: int) -> None:
    with Stage(runner, opener, max_running=2) as stage:
        answer = stage.ask(prompt(40), 50, n=n)
        stage.step(4)
        stage.ask(prompt(10, 3), 50)
        stage.cancel(answer)
        stage.cancel(answer)
        stage.step()
        assert answer.end == Failed("cancelled")
        assert stage.running == 1
        stage.check_held()
        steps = len(stage.runner.steps)
        stage.finish()
        assert all(len(step) == 1 for step in stage.runner.steps[steps:])
        stage.cancel(answer)  # harmless after the end


def test_cancelling_in_the_middle_of_a_prompt(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener) as stage:
        answer = stage.ask(prompt(1000), 5)
        stage.step()
        stage.cancel(answer)
        stage.step()
        assert answer.events == [Failed("cancelled")]
        assert sum(map(sum, stage.runner.steps)) == 2 * IDLE_CHUNK
        again = stage.ask(prompt(1000), 1)
        stage.finish()
        assert again.begun is not None
        assert again.begun.cached == 2 * IDLE_CHUNK  # what was computed is not lost


def test_n_choices_share_the_prompt(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        answer = stage.ask(prompt(100), 6, n=3)
        stage.finish()
        for choice in range(3):
            oracle.check(prompt(100), answer.tokens[choice])
        assert isinstance(answer.end, Usage)
        assert (answer.end.completion, answer.end.cached) == (18, 0)
        computed = sum(map(sum, stage.runner.steps)) - 3 * 5
        assert computed == 100 + 2 * (100 - 99 // BLOCK * BLOCK)


def test_requests_with_the_same_beginning_compute_it_once(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        shared = prompt(320)
        answers = [stage.ask(shared + prompt(10, first), 3) for first in range(5)]
        stage.finish()
        for first, answer in enumerate(answers):
            oracle.check(shared + prompt(10, first), answer.tokens[0])
        assert [answer.begun.cached for answer in answers if answer.begun] == [0, 320, 320, 320, 320]
        assert sum(map(sum, stage.runner.steps)) == 330 + 4 * 10 + 5 * 2


def test_salts_share_nothing(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener) as stage:
        for salt in ("", "a", "b"):
            for expected in (0, 96):
                answer = stage.ask(prompt(100), 2, salt=salt)
                stage.finish()
                assert answer.begun is not None
                assert answer.begun.cached == expected


def test_a_second_turn_finds_the_answer_of_the_first(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        first = stage.ask(prompt(40), 30)
        stage.finish()
        longer = [*prompt(40), *first.tokens[0], *prompt(5, 9)]
        second = stage.ask(longer, 5)
        stage.finish()
        oracle.check(longer, second.tokens[0])
        assert second.begun is not None
        assert second.begun.cached == (40 + 29) // BLOCK * BLOCK  # the last token was never computed


def test_memory_too_small_for_all_makes_the_latest_wait(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener, kv_tokens=4 * GROWTH) as stage:
        prompts = [prompt(100, first) for first in range(3)]
        answers = [stage.ask(tokens, 200) for tokens in prompts]  # each comes to three quarters of it
        while stage.step():
            stage.check_held()
        for tokens, answer in zip(prompts, answers, strict=True):
            assert isinstance(answer.end, Usage)
            oracle.check(tokens, answer.tokens[0])
        assert value(stage, "refrain_engine_preempted_total") > 0


def test_waiting_for_memory_does_not_cost_the_prefixes(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, kv_tokens=4 * GROWTH) as stage:
        stage.ask(prompt(64), 1)
        stage.finish()
        stage.ask(prompt(100, 3), 100)
        stage.step()
        stage.ask(prompt(2 * GROWTH, 4), 1)  # has to wait until the other one has ended
        stage.step(3)
        assert stage.running == 1
        assert stage.scheduler.prefix.known("", prompt(65)) == 64


def test_what_can_never_fit_is_told(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, kv_tokens=2 * GROWTH + 50) as stage:
        assert stage.scheduler.capacity == 2 * GROWTH
        too_long = stage.ask(prompt(2 * GROWTH + 1), 1)
        fits = stage.ask(prompt(2 * GROWTH - 10, 3), 10)
        grows = stage.ask(prompt(2 * GROWTH - 10, 4), 20)
        stage.finish()
        assert too_long.end == Failed("out_of_memory")
        assert isinstance(fits.end, Usage)
        assert grows.end == Failed("out_of_memory")
        assert len(grows.tokens[0]) >= 10


def test_a_party_with_many_does_not_delay_another(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=2) as stage:
        many = [stage.ask(prompt(5, number), 3, party="many") for number in range(50)]
        stage.step(4)
        before = sum(answer.begun is not None for answer in many)
        one = stage.ask(prompt(5, 60), 3, party="one")
        while one.begun is None:
            assert stage.step()
        assert sum(answer.begun is not None for answer in many) <= before + 2
        stage.finish()
        begun = [answer.end for answer in many]
        assert all(isinstance(end, Usage) for end in begun)


def test_within_a_party_first_come_first_served(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=1) as stage:
        answers = [stage.ask(prompt(5, number), 2, party=str(number % 2)) for number in range(10)]
        ended: list[int] = []
        while stage.step():
            ended += [n for n, answer in enumerate(answers) if answer.end and n not in ended]
        ended += [n for n, answer in enumerate(answers) if answer.end and n not in ended]
        assert [n for n in ended if n % 2 == 0] == [0, 2, 4, 6, 8]
        assert [n for n in ended if n % 2] == [1, 3, 5, 7, 9]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("about the prompt"), "failed"),
        (MemoryError(), "out_of_memory"),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"), "out_of_memory"),
    ],
)
def test_a_step_that_fails_ends_those_in_it_and_no_others(
    runner: Runner, opener: Opener, oracle: Oracle, error: Exception, reason: Any
) -> None:
    with Stage(runner, opener, max_running=2) as stage:
        inside = [stage.ask(prompt(20, first), 9) for first in (3, 4)]
        waits = stage.ask(prompt(20, 5), 9)
        stage.step(3)
        stage.runner.error = error
        stage.step()
        assert [answer.end for answer in inside] == [Failed(reason)] * 2
        stage.check_held()
        stage.finish()
        assert isinstance(waits.end, Usage)
        oracle.check(prompt(20, 5), waits.tokens[0])
        again = stage.ask(prompt(20, 3), 9)
        stage.finish()
        oracle.check(prompt(20, 3), again.tokens[0])
        assert type(error).__name__ in stage.log[0]
        assert "about the prompt" not in "".join(stage.log)


def test_one_that_follows_a_failed_one_computes_for_itself(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        leader, follower = stage.ask(prompt(300), 3), stage.ask(prompt(301), 3)
        stage.settle()
        stage.runner.error = RuntimeError()
        stage.finish()
        assert leader.end == Failed("failed")
        oracle.check(prompt(301), follower.tokens[0])
        assert isinstance(follower.end, Usage)


def test_a_choice_that_breaks_ends_its_request_only(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    with Stage(runner, opener) as stage:
        good = stage.ask(prompt(20), 9)
        bad = stage.ask(prompt(20, 4), 9, n=2, fail=3)
        stage.finish()
        assert bad.end == Failed("failed")
        assert isinstance(good.end, Usage)
        oracle.check(prompt(20), good.tokens[0])


class Scarce(KvShape):
    """Memory that the system refuses when told to."""

    refuse = False

    def empty(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        if Scarce.refuse and tokens:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return super().empty(tokens)


@pytest.mark.parametrize("growing", [False, True])
def test_memory_that_the_system_refuses(
    runner: Runner, opener: Opener, monkeypatch: pytest.MonkeyPatch, growing: bool
) -> None:
    with Stage(runner, opener) as stage:
        stage.runner.shape = Scarce(*(getattr(runner.shape, field.name) for field in dataclasses.fields(KvShape)))
        running = stage.ask(prompt(GROWTH - 4), 20)
        stage.settle()
        monkeypatch.setattr(Scarce, "refuse", True)
        new = None if growing else stage.ask(prompt(10, 3), 2)
        stage.step(8)
        monkeypatch.setattr(Scarce, "refuse", False)
        if new is not None:
            assert new.end == Failed("out_of_memory")
        assert running.end == Failed("out_of_memory")
        later = stage.ask(prompt(10, 3), 2)
        stage.finish()
        assert isinstance(later.end, Usage)


def test_closing_ends_what_runs_and_what_waits(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener, max_running=2) as stage:
        answers = [stage.ask(prompt(5, first), 100, n=2) for first in range(4)]
        stage.step(3)
        stage.let_go()
        stage.scheduler.close(WAIT)
        assert [answer.end for answer in answers] == [Failed("stopping")] * 4
        late = stage.ask(prompt(5, 9), 2)
        assert late.end == Failed("stopping")


def test_a_step_that_takes_long_shows(runner: Runner, opener: Opener) -> None:
    with Stage(runner, opener) as stage:
        stage.ask(prompt(5), 2)
        stage.settle()
        seen = stage.scheduler.stalled
        assert 0 < seen < stage.scheduler.stalled
        stage.finish()
