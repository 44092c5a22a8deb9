"""JSON values for property tests, how often to try them, and what came of a try."""

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from gateway.errors import ApiError

T = TypeVar("T")

few = settings(max_examples=20, deadline=None)
some = settings(max_examples=50, deadline=None)

texts = st.text(max_size=12)  # without surrogates: those have tests of their own
integers = st.integers(-(2**70), 2**70)
floats = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | integers | floats | texts


def json_values(leaf: st.SearchStrategy[Any] = leaves, max_leaves: int = 8) -> st.SearchStrategy[Any]:
    """Any JSON value made of `leaf`."""
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
        max_leaves=max_leaves,
    )


def number_texts() -> st.SearchStrategy[str]:
    """Everything that JSON's grammar calls a number, exponents of any size included."""
    return st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,25})?", fullmatch=True)


def attempt(work: Callable[[], T]) -> T | ApiError:
    """What `work` gives, or the refusal that it raises; any other error is a defect and comes through."""
    try:
        return work()
    except ApiError as error:
        return error
