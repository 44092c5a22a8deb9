"""What a person may mean by the name of a document: everything that it labels, and nothing else's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.retrieval.labels import documents_named, label, named, versioned

RETRIEVERS = ("handbook", "wiki")
VERSION = "3f2a9c1b7d8e4f50" + "0" * 48


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("handbook/leave.md", "leave.md"),
        ("handbook/hr/leave.md", "hr/leave.md"),
        ("leave.md", "leave.md"),
        ("hr/leave.md", "hr/leave.md"),
        ("handbook/année 2024.md", "année 2024.md"),
        ("année 2024.md", "année 2024.md"),
        ("handbook/ann%C3%A9e%202024.md", "année 2024.md"),
        ("handbook/ann%c3%a9e%202024.md", "année 2024.md"),
        ("handbook/100%25.md", "100%25.md"),
        ("handbook/100%25.md", "100%.md"),
        ("handbook/%2e%2e/x", "%2e%2e/x"),
        ("team@acme.org", "team@acme.org"),
        ("handbook/team@acme.org", "team@acme.org"),
        ("handbook/team%40acme.org", "team@acme.org"),
        ("../../etc/passwd", "../../etc/passwd"),
        ("a\nb", "a\nb"),
        ("handbook/handbook/x.md", "handbook/x.md"),
        ("handbook/x.md", "handbook/x.md"),  # an id alone, which begins like a retriever
        ("https://acme.org/a?b=c&d=é", "https://acme.org/a?b=c&d=é"),
        ("handbook/", "handbook/"),
        ("/", "/"),
        ("@", "@"),
    ],
)
def test_a_name_means_a_document(name: str, document: str) -> None:
    assert label("handbook", document) in named(name, RETRIEVERS)


@pytest.mark.parametrize("version", [VERSION, VERSION[:16], "7", "v 7/ä", "a@b"])
def test_a_name_with_a_version_means_that_version(version: str) -> None:
    shown = versioned("handbook", "année.md", version)
    for name in (shown, label("handbook", "année.md") + shown[shown.index("@") :]):
        assert shown in named(name, RETRIEVERS)
    if "@" not in version:
        for name in (f"handbook/année.md@{version}", f"année.md@{version}"):
            found = named(name, RETRIEVERS)
            assert shown in found
            # Only that one: other versions stay.
            assert label("handbook", "année.md") not in found


def test_an_id_alone_is_that_document_in_every_retriever() -> None:
    assert {"handbook/leave.md", "wiki/leave.md"} <= named("leave.md", RETRIEVERS)
    assert "wiki/leave.md" not in named("handbook/leave.md", RETRIEVERS)


def test_what_a_retriever_left_behind_can_be_named_without_it() -> None:
    assert label("gone", "née.md") in named("gone/née.md", RETRIEVERS)


@given(document=st.text(min_size=1), version=st.text(min_size=1))
def test_labels_that_are_shown_name_what_they_stand_on(document: str, version: str) -> None:
    for shown in (label("handbook", document), versioned("handbook", document, version)):
        assert shown in named(shown, RETRIEVERS)
    found = named(document, RETRIEVERS)
    assert label("handbook", document) in found
    assert label("wiki", document) in found


def test_whom_to_tell() -> None:
    assert documents_named("handbook/leave.md", RETRIEVERS) == [("handbook", "leave.md")]
    assert documents_named("handbook/n%C3%A9e.md", RETRIEVERS) == [("handbook", "n%C3%A9e.md"), ("handbook", "née.md")]
    assert documents_named("hr/leave.md", RETRIEVERS) == [("handbook", "hr/leave.md"), ("wiki", "hr/leave.md")]
    assert documents_named("leave.md", ()) == []


def test_long_versions_that_begin_alike_have_labels_of_their_own() -> None:
    times = [f"2026-11-30T12:{minute:02}:00.000000+00:00" for minute in range(60)]
    shown = {versioned("kb", "a", time) for time in times}
    assert len(shown) == 60
    assert all(versioned("kb", "a", time) in named(f"kb/a@{time}", ["kb"]) for time in times)
    assert versioned("kb", "a", "2026-11-30") == "kb/a@2026-11-30"


def test_a_name_may_be_written_in_two_ways() -> None:
    decomposed, composed = "anne\u0301e.md", "ann\u00e9e.md"
    assert label("kb", decomposed) in named(f"kb/{composed}", ["kb"])
    assert label("kb", composed) in named(f"kb/{decomposed}", ["kb"])
