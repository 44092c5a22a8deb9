"""JSON values for property tests, and how often to try them."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

few = settings(max_examples=40, deadline=None)
some = settings(max_examples=120, deadline=None)

texts = st.text(max_size=12)  # without surrogates: those have tests of their own
integers = st.integers(-(2**70), 2**70)
floats = st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | integers | floats | texts


def json_values(leaf: st.SearchStrategy[Any] = leaves, max_leaves: int = 12) -> st.SearchStrategy[Any]:
    """Any JSON value made of `leaf`."""
    return st.recursive(
        leaf, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4), max_leaves=max_leaves
    )


def number_texts() -> st.SearchStrategy[str]:
    """Everything that JSON's grammar calls a number, exponents of any size included."""
    return st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,25})?", fullmatch=True)
