"""When an answer has to begin: of what the endpoint allows and what the client says the earlier one."""

import pytest

from gateway.deadlines import READ_TIMEOUT, deadline_of, exceeded


@pytest.mark.parametrize(
    ("allowed", "said", "deadline"),
    [
        (None, None, None),
        (20.0, None, 120.0),
        (None, b"600", 700.0),
        (None, b"2.5", 102.5),
        (20.0, b"2.5", 102.5),
        (20.0, b"600", 120.0),
        (None, b"0.001", 100.001),
        (None, b"99999", 100_099.0),
        (20.0, b"100000", 120.0),
        (20.0, b"0", 120.0),
        (20.0, b"0.0", 120.0),
        (20.0, b"-1", 120.0),
        (20.0, b"nan", 120.0),
        (20.0, b"inf", 120.0),
        (20.0, b"1e1", 120.0),
        (20.0, b"", 120.0),
        (20.0, b" 5", 120.0),
        (20.0, b"5, 6", 120.0),
        (20.0, b"NOT_GIVEN", 120.0),
        (20.0, "٥".encode(), 120.0),
        (20.0, b"9" * 10_000, 120.0),
    ],
)
def test_the_deadline(allowed: float | None, said: bytes | None, deadline: float | None) -> None:
    headers = {} if said is None else {READ_TIMEOUT: said}
    assert deadline_of(allowed, headers, 100.0) == deadline


def test_who_was_never_sent_may_try_again() -> None:
    assert exceeded(sent=False).headers == {}
    assert exceeded(sent=True).headers == {"x-should-retry": "false"}
    assert {exceeded(sent=sent).status for sent in (True, False)} == {504}
