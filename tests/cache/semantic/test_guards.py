"""Which code is given for which difference, and that like texts get none."""

import pytest

from cache.semantic.guards import TEMPLATE, compare, differences
from cache.semantic.signature import signature


def codes(a: str, b: str) -> tuple[str, ...]:
    return differences(signature(a), signature(b))


@pytest.mark.parametrize(
    ("code", "a", "b"),
    [
        ("number", "give me 2 ideas", "give me 3 ideas"),
        ("number", "give me two ideas", "give me ideas"),
        ("number", "python 3.11 news", "python 3.12 news"),
        ("unit", "5 kg in cups", "5 lb in cups"),
        ("date", "is it open on monday", "is it open on friday"),
        ("date", "is it open on monday", "is it open"),
        ("language", "hello world in rust", "hello world in perl"),
        ("format", "the list as json", "the list as xml"),
        ("manner", "a formal note", "a friendly note"),
        ("action", "how do i upload it", "how do i download it"),
        ("asks", "when was it built", "why was it built"),
        ("sign", "7 + 3", "7 * 3"),
        ("quoted", 'fix "no such file"', 'fix "file exists"'),
        ("code", "is user_id unique", "is user_name unique"),
        ("antonym", "turn on the lamp", "turn off the lamp"),
        ("antonym", "stretch before running", "stretch after running"),
        ("antonym", "what is my name", "what is your name"),
        ("negation", "which foods have gluten", "which foods do not have gluten"),
        ("direction", "trains from Rome to Bonn", "trains from Bonn to Rome"),
        ("direction", "is gold heavier than lead", "is lead heavier than gold"),
        ("direction", "does a dog bite a cat", "does a cat bite a dog"),
        ("direction", "how many dollars for euros", "how many euros for dollars"),
        ("name", "where does Alice live", "where does Carol live"),
        ("name", "who directed Alien", "who directed Aliens"),
        ("length", "reset my router", "reset " + " ".join(f"router{c} modem{c}" for c in "abcdefgh")),
        ("foreign", "Wie kündige ich den Vertrag?", "Wie finde ich den Vertrag?"),
        ("swapped", "a recipe for soup", "a recipe for stew"),
        ("scope", "return a gift", "return a gift card"),
        ("scope", "cancel the order", "cancel part of the order"),
        ("extra", "soup with rice", "soup with rice and mushrooms"),
        ("words", "soup with rice", "fried beans on toast"),
    ],
)
def test_code(code: str, a: str, b: str) -> None:
    assert code in codes(a, b)
    assert code in codes(b, a)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("", ""),
        ("Reset my router", "Hi, how could I reset my router please?"),
        ("1,000 metres", "1000 meters"),
        ("give me three ideas", "Give me 3 ideas"),
        ("What is one plus 2?", "What is 1 plus 2?"),
        ("20% of 50", "20 percent of 50"),
        ("$5 tip", "5 dollars tip"),
        ("turn the lamp off", "switch off the lamp"),
        ("from Rome to Bonn by train", "by train from Rome to Bonn"),
        ("What is the capital of Peru?", "what's peru's capital"),
        ("What does 'foo' mean?", "what does foo mean"),
        ("I don't know how to reset my router", "how to reset my router"),
        ("where does Alice live", "Where does alice live?"),
        ("is it 5 miles in km?", "how many km is 5 miles?"),
        ("die Katze", "die katze!"),
        ("如何打开通知", "如何打开通知？"),
        ("２ tickets", "2 tickets"),
        ("soft\u00adware\u200b bug", "software bug"),
    ],
)
def test_nothing_speaks_against_the_same(a: str, b: str) -> None:
    assert codes(a, b) == codes(b, a) == ()


def test_a_template_does_not_match_by_its_fixed_part() -> None:
    fixed = " ".join(f"fixedword{c}" for c in "abcdefghij"[:TEMPLATE])
    assert "template" in codes(f"{fixed}: apples", f"{fixed}: oranges")
    assert "template" in codes(f"apples {fixed}", f"oranges {fixed}")
    assert "template" in codes(f"{fixed}: apples", fixed)
    assert codes(f"{fixed}: apples", f"{fixed}: apples") == ()


def test_word_order_counts_where_all_else_is_equal() -> None:
    assert "direction" not in codes("Edison's date of birth", "the birth date of Edison")
    assert "direction" in codes("从北京到上海", "从上海到北京")


def test_what_differs_is_counted_and_weak_words_count_less() -> None:
    found = compare(signature("find soup with rice"), signature("soup with rice and mushrooms"))
    assert found.shared == 2
    assert 0 < found.asked < found.stored == 1
