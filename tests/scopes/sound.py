"""What every run has to show."""

from tests.scopes.report import explain
from tests.scopes.run import Result


def sound(result: Result) -> Result:
    """No rule was broken, and everything happened that could break one."""
    assert result.found is None, explain(result.found)
    assert not result.unseen
    return result
