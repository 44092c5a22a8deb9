"""Continuous batching against the oracle: whatever comes and goes beside it, a request gets the tokens that the model's
own attention gives it alone, and nothing of it is left behind.

Greedy, in fp32. Arrivals, lengths, cancellations, memory and shared prefixes are random, each case from its seed."""

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from backends.local.kv import GROWTH
from backends.local.metrics import PRIORITIES
from backends.local.opening import Opener
from backends.local.prefix import BLOCK
from backends.local.runner import Runner
from backends.local.work import Failed, QueueFull, Sampling, Usage
from tests.backends.local.stepping import Answer, Stage
from tests.backends.local.tiny import Oracle, llama, tokenizer_of

END, VOCABULARY = 0, 99
SALTS = ["", "a", "b"]


@pytest.fixture(scope="module")
def runner(tiny_gguf: Path) -> Runner:
    return Runner(llama(tiny_gguf))


@pytest.fixture(scope="module")
def opener(tiny_gguf: Path) -> Opener:
    return Opener(tokenizer_of(tiny_gguf), frozenset({END}), VOCABULARY)


@pytest.fixture(scope="module")
def oracle(tiny_gguf: Path) -> Iterator[Oracle]:
    oracle = Oracle(llama(tiny_gguf))
    yield oracle
    assert oracle.share > 0.95, "too little of it was compared"


class Case:
    """Random requests from one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kv_tokens = GROWTH * self.chance.choice([2, 3, 4, 6, 10, 100])
        self.max_running = self.chance.choice([1, 2, 4, 8, 16])
        self.max_queue = self.chance.choice([2, 10, 1000])
        self.requests = self.chance.randint(3, 14)
        self.prefixes = [self.tokens(self.chance.choice([16, 20, 64, 100])) for _ in range(3)]

    def tokens(self, count: int) -> list[int]:
        return [self.chance.randrange(2, VOCABULARY) for _ in range(count)]

    def ask(self, stage: Stage) -> Answer | None:
        """One more request; None where the queue is full."""
        chance = self.chance
        most = stage.scheduler.capacity
        max_tokens = chance.choice([1, 2, 5, 12, 30])
        prompt = self.tokens(chance.choice([1, 3, 15, 16, 17, 40, 150]))
        if chance.random() < 0.6:
            prompt = chance.choice(self.prefixes) + prompt
        if chance.random() < 0.2 and stage.answers:  # the same again, or the next turn
            answer = chance.choice(stage.answers)
            prompt = [*answer.work.prompt, *answer.tokens[0], *self.tokens(chance.choice([0, 3]))]
        prompt = prompt[: most - max_tokens]
        try:
            return stage.ask(
                prompt,
                max_tokens,
                n=chance.choice([1, 1, 1, 2, 3]),
                salt=chance.choice(SALTS),
                party=chance.choice(["", "x", "y"]),
                priority=chance.choice(PRIORITIES),
                stops=("ab",) if chance.random() < 0.1 else (),
                ignore_eos=chance.random() < 0.5,
            )
        except QueueFull:
            return None


def check(stage: Stage, oracle: Oracle, cancelled: set[Answer]) -> None:
    """Every answer is right, and no more of a prompt was said to be cached than could be known."""
    for answer in stage.answers:
        answer.check()
        for tokens in answer.tokens.values():
            oracle.check(list(answer.work.prompt), tokens)
        if answer not in cancelled:
            assert isinstance(answer.end, Usage), answer.end
        elif isinstance(answer.end, Failed):
            assert answer.end.reason == "cancelled"
        if isinstance(answer.end, Usage):
            check_ends(answer)
        if answer.begun is not None:
            cached = answer.begun.cached
            assert cached % BLOCK == 0
            assert cached <= knowable(answer, stage.answers)


def check_ends(answer: Answer) -> None:
    for tokens in answer.tokens.values():
        assert 1 <= len(tokens) <= answer.work.max_tokens
        if not answer.work.stops:
            assert len(tokens) == answer.work.max_tokens or tokens[-1] == END
        if not answer.work.ignore_eos:
            assert END not in tokens[:-1]


def knowable(answer: Answer, all_of_them: list[Answer]) -> int:
    """The longest beginning of its prompt that another request under the same salt has, too."""
    prompt, best = answer.work.prompt[:-1], 0
    for other in all_of_them:
        if other is not answer and other.work.salt == answer.work.salt:
            for tokens in other.tokens.values():
                pairs = zip(prompt, [*other.work.prompt, *tokens], strict=False)
                same = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
                length = min(len(prompt), len(other.work.prompt) + len(tokens)) if same is None else same
                best = max(best, length)
    return best


def run_stepwise(seed: int, runner: Runner, opener: Opener, oracle: Oracle) -> None:
    """Certain to the last token: what happens between two steps comes from the seed."""
    case = Case(seed)
    cancelled: set[Answer] = set()
    with Stage(
        runner, opener, kv_tokens=case.kv_tokens, max_running=case.max_running, max_queue=case.max_queue
    ) as stage:
        left = case.requests
        more = True
        while left or more:
            if left and case.chance.random() < 0.5:
                left -= 1
                case.ask(stage)
            if stage.answers and case.chance.random() < 0.05:
                answer = case.chance.choice(stage.answers)
                if answer.end is None:
                    cancelled.add(answer)
                stage.cancel(answer)
                if stage.step():
                    assert answer.end is not None  # within one step
                    stage.check_held()
            more = stage.step()
            if more:
                stage.check_held()
                stage.check_order()
        whole = not cancelled and not preempted(stage)
        if whole:  # what was said to be cached was not computed, and all else was, once
            answers = [answer for answer in stage.answers if answer.work.n == 1]
            if len(answers) == len(stage.answers):
                expected = sum(len(a.work.prompt) - a.end.cached + a.end.completion - 1 for a in answers)  # type: ignore[union-attr]
                assert sum(map(sum, stage.runner.steps)) == expected
    check(stage, oracle, cancelled)


def preempted(stage: Stage) -> bool:
    counts = stage.metrics.preempted.collect()[0].samples
    return any(sample.value for sample in counts if sample.name.endswith("_total"))


@pytest.mark.parametrize("seed", range(12))
def test_random_cases(seed: int, runner: Runner, opener: Opener, oracle: Oracle) -> None:
    run_stepwise(seed, runner, opener, oracle)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_many_random_cases(part: int, runner: Runner, opener: Opener, oracle: Oracle) -> None:
    for seed in range(100 + part * 50, 100 + (part + 1) * 50):
        run_stepwise(seed, runner, opener, oracle)


def run_freely(seed: int, clients: int, requests: int, runner: Runner, opener: Opener, oracle: Oracle) -> None:
    """Threads that ask and cancel while the model runs as fast as it can."""
    cancelled: set[Answer] = set()
    with Stage(runner, opener, kv_tokens=GROWTH * 8, max_running=6, max_queue=20, free=True) as stage:

        def client(number: int) -> None:
            case = Case(seed * 1000 + number)
            for _ in range(requests):
                answer = case.ask(stage)
                if answer is not None and case.chance.random() < 0.3:
                    cancelled.add(answer)
                    stage.cancel(answer)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        stage.wait()
    check(stage, oracle, cancelled)


def test_many_threads(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    run_freely(0, 4, 12, runner, opener, oracle)


@pytest.mark.slow
def test_many_threads_for_long(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    for seed in range(1, 11):
        run_freely(seed, 6, 25, runner, opener, oracle)


def test_sixteen_at_once_are_as_one_alone(runner: Runner, opener: Opener, oracle: Oracle) -> None:
    chance = random.Random(7)
    prompts = [[chance.randrange(2, VOCABULARY) for _ in range(chance.randint(1, 300))] for _ in range(16)]
    with Stage(runner, opener, kv_tokens=16 * 1024) as stage:
        together = [stage.ask(prompt, 24) for prompt in prompts]
        stage.finish()
        warm = [stage.ask(prompt, 24) for prompt in prompts]
        stage.finish()
        found = [answer.begun.cached for answer in warm if answer.begun]
        assert found == [(len(prompt) - 1) // BLOCK * BLOCK for prompt in prompts]
    for prompt, *answers in zip(prompts, together, warm, strict=True):
        for answer in answers:
            oracle.check(prompt, answer.tokens[0])
    for prompt, answer in zip(prompts[:3], together[:3], strict=True):
        assert oracle.greedy(prompt, 24) == answer.tokens[0]  # the oracle's short way is as good as the long one


def test_a_seed_gives_the_same_answer_whatever_runs_beside_it(runner: Runner, opener: Opener) -> None:
    case = Case(3)
    prompt, sampling = case.tokens(60), Sampling(temperature=1.0, top_p=0.95, seed=11)
    with Stage(runner, opener) as stage:
        alone = stage.ask(prompt, 80, n=2, sampling=sampling)
        stage.finish()
    with Stage(runner, opener, kv_tokens=4 * GROWTH) as stage:
        stage.ask(case.tokens(60), 330)
        stage.step(130)  # so that it needs more memory in the midst of the other one
        crowded = stage.ask(prompt, 80, n=2, sampling=sampling, salt="a")
        stage.finish()
        assert preempted(stage)
    assert crowded.tokens == alone.tokens
    assert alone.tokens[0] != alone.tokens[1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_the_same_on_a_gpu(tiny_gguf: Path, opener: Opener, attention: str) -> None:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = llama(tiny_gguf).to("cuda")
    oracle, runner = Oracle(model, attention), Runner(model)
    for seed in range(10):
        run_stepwise(seed, runner, opener, oracle)
    run_freely(0, 4, 12, runner, opener, oracle)
    assert oracle.share > 0.95
