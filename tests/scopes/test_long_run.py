"""The long run, in parts: a file of its own, so that others run beside it. A longer one: `python -m tests.scopes`."""

import pytest

from tests.scopes.run import run
from tests.scopes.sound import sound

PARTS = 12
EACH = 250


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_no_answer_crosses_a_scope_in_thousands_of_sequences(part: int) -> None:
    assert sound(run(EACH, seed=1_000 + part * EACH)).counts["sequences"] == EACH
