"""The index at one moment: what is found, who sees what, and what another index has in common with it."""

from collections.abc import Mapping

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.retrievers.folder.chunking import Piece
from backends.retrievers.folder.index import SPARE, Index, Indexed
from backends.retrievers.folder.pieces import checksum

D = 4
Vector = np.ndarray


def unit(*head: float) -> Vector:
    vector = np.zeros(D, np.float32)
    vector[: len(head)] = head
    return vector / np.float32(np.linalg.norm(vector))


def document(*texts: str, needs: str = "", version: str = "1") -> Indexed:
    pieces = tuple(Piece("title", text) for text in texts)
    return Indexed(version, checksum(pieces), frozenset(needs.split()), pieces)


def index_of(documents: Mapping[str, tuple[Indexed, list[Vector]]], embedder: str = "e") -> Index:
    put = {name: (one, np.array(vectors, np.float32).reshape(-1, D)) for name, (one, vectors) in documents.items()}
    return Index(embedder, D).changed(put=put, away=(), required={})


def places(index: Index, vector: Vector, k: int, permissions: frozenset[str] | None = None) -> list[tuple[str, int]]:
    return [(found.document, found.position) for found in index.search(vector, k, permissions)]


def test_the_best_first_with_cosines() -> None:
    index = index_of(
        {
            "a": (document("far", "near", version="7"), [unit(0, 1), unit(3, 1)]),
            "b": (document("same", "opposite"), [unit(1), unit(-1)]),
        }
    )
    found = index.search(unit(1), 3, None)
    assert [(one.document, one.version, one.position, one.text) for one in found] == [
        ("b", "1", 0, "same"),
        ("a", "7", 1, "near"),
        ("a", "7", 0, "far"),
    ]
    assert [one.score for one in found] == pytest.approx([1, 3 / 10**0.5, 0], abs=1e-6)
    assert {type(one.score) for one in found} == {float}
    assert index.search(unit(1), 100, None)[3:][0].score == -1.0
    assert found[0].title == "title"


def test_nothing_to_find() -> None:
    assert index_of({}).search(unit(1), 3, None) == []
    index = index_of({"empty": (document(), []), "hr": (document("x", needs="hr"), [unit(1)])})
    assert index.search(unit(1), 3, frozenset()) == []
    assert index.search(unit(1), 3, None)[0].document == "hr"
    assert (index.rows(frozenset()), index.rows(None), index.pieces, len(index.documents)) == (0, 1, 1, 2)


def test_a_document_without_pieces_does_not_move_the_others() -> None:
    documents = {name: (document(), []) for name in ("a", "c", "e")}
    index = index_of({**documents, "b": (document("1", "2"), [unit(1), unit(0, 1)]), "d": (document("3"), [unit(1)])})
    assert places(index, unit(0, 1), 1) == [("b", 1)]
    assert places(index, unit(1), 2) == [("b", 0), ("d", 0)]


@pytest.mark.parametrize("many", [3, SPARE + 5, 200])
def test_equal_scores_are_found_in_the_order_of_document_and_position(many: int) -> None:
    names = [f"{n:04}" for n in range(many)]
    same = {name: (document("x", "x"), [unit(1, 1)] * 2) for name in names}
    some = {name: (document("x", needs="hr"), [unit(1, 1)]) for name in ("0000a", "0001a")}
    better = {"z": (document("y"), [unit(1)])}
    index = index_of({**same, **some, **better})
    expected = [("z", 0), ("0000", 0), ("0000", 1), ("0000a", 0), ("0001", 0), ("0001", 1), ("0001a", 0)]
    assert places(index, unit(1), 5) == expected[:5]
    assert places(index, unit(1), len(expected)) == expected


def test_all_permissions_are_needed() -> None:
    index = index_of(
        {
            "open": (document("x"), [unit(1)]),
            "hr": (document("x", needs="hr"), [unit(1)]),
            "both": (document("x", needs="hr legal"), [unit(1)]),
        }
    )
    assert places(index, unit(1), 9, frozenset()) == [("open", 0)]
    assert places(index, unit(1), 9, frozenset({"legal", "x"})) == [("open", 0)]
    assert places(index, unit(1), 9, frozenset({"hr"})) == [("hr", 0), ("open", 0)]
    assert places(index, unit(1), 9, frozenset({"hr", "legal"})) == [("both", 0), ("hr", 0), ("open", 0)]
    assert places(index, unit(1), 9, None) == [("both", 0), ("hr", 0), ("open", 0)]


permissions = st.frozensets(st.sampled_from("abc"))
rows = st.lists(st.integers(0, 5), max_size=4)
KINDS = [unit(1), unit(1, 1), unit(0, 1), unit(-1, 2), unit(0, 0, 1), unit(1, 2, 3)]


@given(
    before=st.dictionaries(st.sampled_from("klmnop"), st.tuples(permissions, rows)),
    put=st.dictionaries(st.sampled_from("klmnop"), st.tuples(permissions, rows)),
    away=st.frozensets(st.sampled_from("klmnop")),
    moved=st.dictionaries(st.sampled_from("klmnop"), permissions),
    asked=st.none() | permissions,
    top_k=st.integers(1, 8),
)
@settings(max_examples=80, deadline=None)
def test_partitions_find_what_a_filter_over_everything_would(
    before: dict[str, tuple[frozenset[str], list[int]]],
    put: dict[str, tuple[frozenset[str], list[int]]],
    away: frozenset[str],
    moved: dict[str, frozenset[str]],
    asked: frozenset[str] | None,
    top_k: int,
) -> None:
    def made(one: tuple[frozenset[str], list[int]], version: str) -> tuple[Indexed, Vector]:
        new = document(*map(str, one[1]), needs=" ".join(one[0]), version=version)
        return new, np.array([KINDS[kind] for kind in one[1]], np.float32).reshape(-1, D)

    moved = {name: needed for name, needed in moved.items() if name in before and name not in away and name not in put}
    first = Index("e", D).changed(put={n: made(one, "1") for n, one in before.items()}, away=(), required={})
    index = first.changed(put={n: made(one, "2") for n, one in put.items()}, away=away - put.keys(), required=moved)
    known = {name: one for name, one in before.items() if name not in away} | put
    known |= {name: (needed, known[name][1]) for name, needed in moved.items()}
    query = unit(3, 1)
    visible = [
        (-float(np.dot(KINDS[kind], query)), name, position)
        for name, (needed, kinds) in known.items()
        if asked is None or needed <= asked
        for position, kind in enumerate(kinds)
    ]
    found = index.search(query, top_k, asked)
    assert [(one.document, one.position) for one in found] == [one[1:] for one in sorted(visible)[:top_k]]
    assert [one.version for one in found] == ["2" if one.document in put else "1" for one in found]
    assert index.pieces == sum(len(kinds) for _, kinds in known.values())
    whole = Index("e", D).changed(
        put={n: made(one, "2" if n in put else "1") for n, one in known.items()}, away=(), required={}
    )
    assert index.digest == whole.digest  # however it came about


def test_a_change_leaves_the_former_index_as_it_was() -> None:
    former = index_of({"a": (document("x"), [unit(1)]), "b": (document("y", needs="hr"), [unit(1)])})
    new = former.changed(put={"c": (document("z"), np.array([unit(1)]))}, away={"a"}, required={"b": frozenset()})
    assert places(former, unit(1), 9, frozenset()) == [("a", 0)]
    assert places(new, unit(1), 9, frozenset()) == [("b", 0), ("c", 0)]
    assert np.array_equal(new.vectors("b"), [unit(1)])


def test_the_digest_tells_of_all_that_decides_what_is_found() -> None:
    same = [index_of({"a": (document("x"), [unit(1)]), "b": (document("y"), [unit(1)])}) for _ in range(2)]
    others = [
        index_of({"a": (document("x"), [unit(1)])}),
        index_of({"a": (document("x"), [unit(1)]), "c": (document("y"), [unit(1)])}),
        index_of({"a": (document("x", version="2"), [unit(1)]), "b": (document("y"), [unit(1)])}),
        index_of({"a": (document("x", needs="hr"), [unit(1)]), "b": (document("y"), [unit(1)])}),
        index_of({"a": (document("z"), [unit(1)]), "b": (document("y"), [unit(1)])}),
        index_of({"a": (document("x"), [unit(1)]), "b": (document("y"), [unit(1)])}, embedder="f"),
    ]
    assert same[0].digest == same[1].digest
    assert len({index.digest for index in [same[0], *others]}) == len(others) + 1


def test_vectors_that_do_not_belong_to_the_pieces_are_refused() -> None:
    with pytest.raises(ValueError, match="1 vectors of 2 pieces"):
        index_of({"a": (document("x", "y"), [unit(1)])})


def test_faiss_threads_of_others_stay_as_they_were() -> None:
    before = faiss.omp_get_max_threads()
    index_of({"a": (document("x"), [unit(1)])}).search(unit(1), 1, None)
    assert faiss.omp_get_max_threads() == before
