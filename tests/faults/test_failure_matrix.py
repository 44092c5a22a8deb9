"""The failure matrix: every fault, the leader there or gone, clients in either form. See docs/failures.md."""

import pytest

from tests.faults.matrix.cases import Case
from tests.faults.matrix.expected import RULES, expected
from tests.faults.matrix.faults import FAULTS
from tests.faults.matrix.observe import CASES, Observed, observe_all
from tests.faults.matrix.page import shown, tables

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def observed() -> Observed:
    return observe_all()


def test_every_fault_has_its_rule() -> None:
    for mode, faults in FAULTS.items():
        assert list(RULES[mode]) == list(faults)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_what_everybody_gets(observed: Observed, case: Case) -> None:
    assert observed.row(case) == expected(case)


def test_no_token_is_lost_or_counted_twice(observed: Observed) -> None:
    """What was served without a call was saved; what was consumed and reached nobody is unserved."""
    for tokens in observed.books:
        assert tokens["served"] + tokens["unserved"] == tokens["consumed"] + tokens["saved"]
        assert tokens["consumed"] > 0


def test_the_page_shows_what_was_observed(observed: Observed) -> None:
    assert shown() == tables(observed), "`python -m tests.faults.matrix` writes docs/failures.md anew"
