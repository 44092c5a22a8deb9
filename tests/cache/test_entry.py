from dataclasses import FrozenInstanceError

import pytest

from cache.entry import Usage
from tests.contract.stores import START, make_entry


def test_age_is_whole_seconds_and_never_negative() -> None:
    entry = make_entry(created=START)
    assert [entry.age(START + seconds) for seconds in (0, 0.9, 1, 59.99, 60)] == [0, 0, 1, 59, 60]
    assert entry.age(START - 100) == 0


def test_a_life_that_is_cut_off_leaves_the_time_after_it_as_long() -> None:
    entry = make_entry(created=START, expires=START + 3600, keep_until=START + 3700)
    cut = entry.stale_from(START + 5)
    assert (cut.expires, cut.keep_until, cut.created) == (START + 5, START + 105, START)
    assert entry.expires == START + 3600


def test_size_counts_body_strings_and_labels() -> None:
    base = make_entry(body=b"").size
    assert make_entry(body=b"x" * 1000).size == base + 1000
    assert make_entry(body=b"", user="alice" + "x" * 10).size == base + 10
    assert make_entry(body=b"", tags=("abc",)).size == make_entry(body=b"", documents=("abc",)).size > base + 3


def test_the_answer_is_not_in_the_repr() -> None:
    assert "secret" not in repr(make_entry(body=b"secret"))


def test_entries_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        make_entry().body = b""  # type: ignore[misc]  # this is what the test is about


def test_usage_adds_up() -> None:
    assert Usage(3, 4).total == 7
