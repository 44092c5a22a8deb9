"""Which tokens are computed next: what must hold for any sequences whatever."""

from hypothesis import given, settings
from hypothesis import strategies as st

from backends.local.plan import BATCH_BESIDE, BUSY_CHUNK, IDLE_CHUNK, OLDEST_SHARE, plan

LEFT = st.lists(st.one_of(st.sampled_from([0, 1, 1, 2, 3]), st.integers(0, 3000)), max_size=24)


@settings(max_examples=200, derandomize=True)
@given(LEFT)
def test_what_holds_of_every_step(left: list[int]) -> None:
    parts = plan(left)
    tokens = {part.index: part.tokens for part in parts}
    assert [part.index for part in parts] == sorted(tokens)
    assert all(0 < count <= left[index] for index, count in tokens.items())
    streams = [index for index, count in enumerate(left) if count == 1]
    prompts = [index for index, count in enumerate(left) if count > 1]
    assert all(tokens.get(index) == 1 for index in streams)
    room = BUSY_CHUNK if streams else IDLE_CHUNK
    computed = sum(tokens.get(index, 0) for index in prompts)
    assert computed == min(room, sum(left[index] for index in prompts))  # none is wasted
    if prompts:
        assert tokens[prompts[0]] >= min(left[prompts[0]], room // OLDEST_SHARE)


@settings(max_examples=100, derandomize=True)
@given(LEFT)
def test_beside_the_share_of_the_oldest_the_shortest_go_first(left: list[int]) -> None:
    tokens = {part.index: part.tokens for part in plan(left)}
    prompts = [index for index, count in enumerate(left) if count > 1]
    share = (BUSY_CHUNK if 1 in left else IDLE_CHUNK) // OLDEST_SHARE
    for shorter in prompts:
        for longer in prompts:
            owed = share if longer == prompts[0] else 0
            if left[shorter] < left[longer] and tokens.get(longer, 0) > owed:
                assert tokens[shorter] == left[shorter]


@settings(max_examples=60, derandomize=True)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=12), st.integers(0, 4))
def test_every_prompt_is_done_within_its_bound(prompts: list[int], streams: int) -> None:
    left = [1] * streams + prompts
    steps = 0
    while any(left[streams:]):
        for part in plan(left):
            if part.index >= streams:
                left[part.index] -= part.tokens
        steps += 1
        assert steps <= sum(prompts) // (BUSY_CHUNK // OLDEST_SHARE) + len(prompts) + 1


@settings(max_examples=200, derandomize=True)
@given(LEFT, st.sets(st.integers(0, 23)))
def test_batch_changes_nothing_for_the_others_and_takes_little_beside_them(left: list[int], which: set[int]) -> None:
    batch = {index for index in which if index < len(left)}
    tokens = {part.index: part.tokens for part in plan(left, batch=batch)}
    others = {index: count for index, count in tokens.items() if index not in batch}
    mine = {index: count for index, count in tokens.items() if index in batch}
    assert others == {p.index: p.tokens for p in plan([0 if i in batch else n for i, n in enumerate(left)])}
    assert all(0 < count <= left[index] for index, count in mine.items())
    streams = [index for index in sorted(batch) if left[index] == 1]
    wanted = sum(left[index] for index in batch)
    if others:
        assert sum(mine.values()) == min(BATCH_BESIDE, wanted)
        assert [index for index in streams if index in mine] == streams[:BATCH_BESIDE]  # those that came first
    else:
        assert all(mine[index] == 1 for index in streams)
        assert sum(mine.values()) == len(streams) + min(BUSY_CHUNK, wanted - len(streams))


def test_of_many_batch_streams_those_that_came_first_go_on() -> None:
    assert [part.index for part in plan([1] * 9, batch=range(9))] == list(range(9))
    assert [part.index for part in plan([1] * 9, batch=range(1, 9))] == list(range(BATCH_BESIDE + 1))


def test_beside_interactive_ones_the_oldest_batch_prompt_goes_on_too() -> None:
    parts = plan([1, 2000, 50], batch={1, 2})
    assert {part.index: part.tokens for part in parts} == {0: 1, 1: 1, 2: BATCH_BESIDE - 1}


def test_one_that_others_wait_for_has_their_place() -> None:
    left = [1, 2000, 50, 50, 1900]
    assert 4 not in {part.index for part in plan(left)}
    assert {part.index: part.tokens for part in plan(left, [1, 2000, 50, 50, 40])}[4] == BUSY_CHUNK * 3 // 4


def test_nothing_to_do() -> None:
    assert plan([]) == []
    assert plan([0, 0]) == []
