"""What people are told while files are read and embedded."""

import pytest

from backends.retrievers.folder.progress import LOG_EVERY, FolderProgress, duration


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_from_the_first_file_to_the_last_piece() -> None:
    clock = Clock()
    progress = FolderProgress(3, 3_000, clock)
    assert (str(progress), progress.total, progress.left) == ("reading: 0 of 3 files", 0, None)
    progress.read(1_000, 10, 4)
    assert (progress.done, progress.total) == (4, 30)  # reckoned
    assert str(progress) == "indexing: 4 of about 30 pieces"
    progress.embedding()
    clock.now += 2
    progress.made(6)
    assert (progress.done, progress.rate, progress.left) == (10, 3.0, pytest.approx(20 / 3))
    progress.read(1_000, 0, 0)
    progress.read(1_000, 3_990, 0)
    assert str(progress) == "indexing: 10 of 4,000 pieces, 22 min left"
    progress.embedding()  # it began before
    progress.made(3_990)
    assert (progress.done, progress.total, progress.left) == (4_000, 4_000, 0)


def test_pieces_that_need_no_model_say_nothing_about_its_rate() -> None:
    progress = FolderProgress(1, 10, Clock())
    progress.read(10, 5, 5)
    assert (progress.done, progress.total, progress.left, str(progress)) == (5, 5, None, "indexing: 5 of 5 pieces")


def test_empty_files_have_no_pieces() -> None:
    progress = FolderProgress(2, 0, Clock())
    progress.read(0, 0, 0)
    assert str(progress) == "reading: 1 of 2 files"


def test_why_it_does_not_go_on() -> None:
    progress = FolderProgress(1, 10, Clock())
    progress.read(10, 5, 0)
    progress.trouble = "out of order"
    assert str(progress) == "indexing: 0 of 5 pieces; waiting for the embedding model: out of order"


def test_a_line_for_the_log_every_few_seconds() -> None:
    clock = Clock()
    progress = FolderProgress(1, 10, clock)
    assert not progress.due()
    clock.now += LOG_EVERY
    assert progress.due()
    assert not progress.due()


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (41.4, "41 s"), (99, "99 s"), (100, "2 min"), (5_999, "100 min"), (6_000, "2 h")],
)
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said
