"""No answer made from documents crosses a permission or outlives its documents, whatever happens in whatever order."""

import json

import pytest

from tests.scopes.__main__ import main
from tests.scopes.documents_run import run
from tests.scopes.sound import sound

pytestmark = pytest.mark.slow

SEQUENCES = 60


def test_no_answer_crosses_a_permission_or_outlives_its_documents() -> None:
    counts = sound(run(SEQUENCES, seed=180)).counts
    assert counts["sequences"] == SEQUENCES
    assert counts["documents"] > counts["sequences"]


def test_the_command_prints_what_it_counted(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--documents", "--sequences", "3", "--seed", "1", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert (figures["sequences"], figures["violations"]) == (3, 0)
    assert figures["documents"] > 0
