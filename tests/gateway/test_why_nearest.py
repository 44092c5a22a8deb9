"""Which request that came before is the nearest: within one scope, by what differs least, within bounds."""

from typing import Any

import pytest

from gateway.ask import Ask
from gateway.principal import Principal
from gateway.why.nearest import Before, Found, Nearest, _candidates
from gateway.why.sketch import sketch
from tests.gateway.asking import ALICE, TURNS, ask

SECRET = b"s" * 16
NOW = 1_800_000_000.0


def learn(memory: Nearest, asked: Ask, *, ends: float = NOW + 60, reason: str | None = None) -> Ask:
    memory.learn(asked.scope.digest(), sketch(asked, SECRET), ends=ends, reason=reason)
    return asked


def find(memory: Nearest, asked: Ask, *, before: Before | None = None) -> Found:
    before = before or memory.before(asked.key)
    return memory.find(asked.scope.digest(), sketch(asked, SECRET), before=before, now=NOW)


def told(memory: Nearest, asked: Ask) -> str:
    return ", ".join(find(memory, asked).differs)


def remembering(*asked: Ask) -> Nearest:
    memory = Nearest()
    for one in asked:
        learn(memory, one)
    return memory


def said(*texts: str) -> list[dict[str, Any]]:
    return [TURNS[0], *({"role": "assistant" if i % 2 else "user", "content": t} for i, t in enumerate(texts))]


def test_nothing_is_near_where_nothing_was() -> None:
    assert find(Nearest(), ask()) == Found()


def test_the_same_request_is_found_by_its_key() -> None:
    memory = remembering(ask(), ask("Else?"))
    learn(memory, ask("Cut?"), reason="finish_reason_length")
    same = find(memory, ask()).same
    assert same is not None
    assert (same.sketch.key, same.reason, same.ends) == (ask().key, None, NOW + 60)
    cut = find(memory, ask("Cut?")).same
    assert cut is not None
    assert cut.reason == "finish_reason_length"


def test_the_same_question_with_another_temperature_is_told_the_temperature() -> None:
    memory = remembering(ask(temperature=0), *(ask(f"Question {i}?", temperature=1) for i in range(50)))
    assert told(memory, ask(temperature=1)) == "parameter temperature"


def test_a_different_question_in_the_same_setting_is_told_that_the_question_differs() -> None:
    memory = remembering(ask(), ask(temperature=1), ask("Else?", endpoint="other"))
    assert told(memory, ask("Why?")) == "question"
    assert told(memory, ask("Why?", temperature=1)) == "question"
    assert told(memory, ask("Why?", temperature=0.5)) == "parameter temperature, question"


def test_a_system_prompt_that_changes_is_told_though_others_ask_under_the_same_one() -> None:
    today = [{"role": "system", "content": "It is Tuesday."}]
    yesterday = [{"role": "system", "content": "It is Monday."}]
    memory = remembering(ask("Hours?", before=yesterday), ask("Price?", before=today))
    assert told(memory, ask("Hours?", before=today)) == "system prompt"


def test_the_same_words_in_another_conversation_are_not_nearer_than_another_question_in_this_one() -> None:
    memory = remembering(ask("Yes.", before=said("a", "b")), ask("No.", before=said("c", "d")))
    assert told(memory, ask("Yes.", before=said("c", "d"))) == "question"


def test_a_conversation_goes_on_from_its_own_turn_before() -> None:
    memory = remembering(
        ask("one", before=said()),
        ask("two", before=said("one", "1")),
        *(ask("two", before=said(f"other {i}", "1")) for i in range(40)),
        *(ask(f"start {i}", before=said()) for i in range(40)),
    )
    found = find(memory, ask("three", before=said("one", "1", "two", "2")))
    assert found.continued
    assert found.nearest is not None
    assert found.nearest.sketch.key == ask("two", before=said("one", "1")).key


def test_of_equally_near_ones_the_latest_is_named() -> None:
    memory = remembering(*(ask(f"Question {i}?") for i in range(20)))
    nearest = find(memory, ask("Why?")).nearest
    assert nearest is not None
    assert nearest.sketch.key == ask("Question 19?").key


def test_what_was_not_kept_is_nobodys_nearest() -> None:
    memory = Nearest()
    learn(memory, ask(), reason="empty")
    assert find(memory, ask(temperature=1)) == Found()
    learn(memory, ask())  # this time it was
    assert told(memory, ask(temperature=1)) == "parameter temperature"
    learn(memory, ask(), reason="empty")
    assert find(memory, ask(temperature=1)) == Found()


def test_an_answer_whose_life_is_over_is_named_only_where_there_is_no_other() -> None:
    memory = Nearest()
    learn(memory, ask(temperature=0), ends=NOW)
    assert told(memory, ask(temperature=1)) == "parameter temperature"
    learn(memory, ask("Else?", temperature=0.5))
    assert told(memory, ask(temperature=1)) == "parameter temperature, question"


def test_only_what_was_known_before_counts() -> None:
    memory = remembering(ask())
    came = memory.before(ask(temperature=1).key)
    learn(memory, ask(temperature=1))
    assert find(memory, ask(temperature=1), before=came).same is None
    assert ", ".join(find(memory, ask(temperature=1), before=came).differs) == "parameter temperature"
    assert find(memory, ask(temperature=1)).same is not None


def test_what_came_again_meanwhile_is_as_it_was() -> None:
    memory = Nearest()
    learn(memory, ask(), ends=NOW - 1)
    came = memory.before(ask().key)
    for _ in range(3):
        learn(memory, ask(), ends=NOW + 60)
        same = find(memory, ask(), before=came).same
        assert same is not None
        assert same.ends == NOW - 1


SCOPES = {
    "tenants": ("default", ALICE, Principal("globex", "alice", ALICE.permissions)),
    "users": ("personal", ALICE, Principal("acme", "bob", ALICE.permissions)),
    "a user's permissions": ("personal", ALICE, Principal("acme", "alice", frozenset({"hr", "eng"}))),
    "permission sets": ("permitted", ALICE, Principal("acme", "bob", frozenset())),
}


@pytest.mark.parametrize("name", SCOPES)
def test_another_scope_is_never_near(name: str) -> None:
    """Neither the same request nor a near one is hinted at."""
    endpoint, one, other = SCOPES[name]
    memory = remembering(*(ask(text, endpoint=endpoint, principal=one) for text in ("How are you?", "Else?")))
    for text in ("How are you?", "Else?", "New?"):
        assert find(memory, ask(text, endpoint=endpoint, principal=other)) == Found()
    learn(memory, ask("Mine.", endpoint=endpoint, principal=other))
    found = find(memory, ask(endpoint=endpoint, principal=other))
    assert found.nearest is not None
    assert found.nearest.scope == ask(principal=other, endpoint=endpoint).scope.digest()


def test_the_latest_of_a_scope_are_remembered() -> None:
    memory = Nearest(in_scope=10)
    for i in range(30):
        learn(memory, ask(f"q{i}"))
        learn(memory, ask(f"q{i}", principal=Principal("globex", "eve")))
    assert len(memory) == 20
    assert find(memory, ask("q19")).same is None
    assert find(memory, ask("q20")).same is not None


def test_what_is_asked_again_is_remembered_for_longer() -> None:
    memory = Nearest(in_scope=10)
    for i in range(30):
        learn(memory, ask("again"))
        learn(memory, ask(f"q{i}"))
    assert find(memory, ask("again")).same is not None


def test_all_together_stay_within_their_bytes() -> None:
    one = Nearest()
    learn(one, ask())
    memory = Nearest(max_bytes=20 * one.bytes + 10)
    for i in range(100):
        learn(memory, ask(f"q{i}", principal=Principal(f"tenant {i % 7}", "a")))
    assert len(memory) == 20
    assert memory.bytes <= 20 * one.bytes + 10
    assert find(memory, ask("q99", principal=Principal("tenant 1", "a"))).same is not None
    assert find(memory, ask("q0", principal=Principal("tenant 0", "a"))).same is None


def test_nothing_is_left_of_what_was_forgotten() -> None:
    memory = Nearest(in_scope=1)
    for i in range(50):
        learn(memory, ask(f"q{i}", seed=i % 3))
        learn(memory, ask(f"q{i}", seed=i % 3), reason="empty" if i % 2 else None)
    (scope,) = memory._scopes.values()
    assert len(memory) == len(scope.known) == 1
    assert len(scope.near) <= 4
    assert memory.bytes == next(iter(scope.known.values())).size


def test_few_are_looked_at_however_many_there_are() -> None:
    memory = remembering(*(ask(f"q{i % 40}", temperature=i) for i in range(800)))
    (scope,) = memory._scopes.values()
    for asked in (ask("q7", temperature=7.5), ask("new", temperature=7), ask("new"), ask("new", before=said("a", "b"))):
        looked_at = list(_candidates(scope, sketch(asked, SECRET)))
        assert 0 < len(looked_at) <= 64
