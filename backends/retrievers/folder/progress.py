"""How far the reading and embedding of some files is, for people."""

import time
from collections.abc import Callable

LOG_EVERY = 5.0  # seconds


class FolderProgress:
    """Of `files` files with `size` bytes together. Pieces are counted; `total` is reckoned from the bytes read so far
    until all files have been read."""

    def __init__(self, files: int, size: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.files = files
        self.files_read = 0
        self.done = 0
        self.trouble = ""  # why the embedding model makes no vectors at the moment
        self._size = size
        self._size_read = 0
        self._pieces = 0
        self._embedded = 0
        self._clock = clock
        self._began: float | None = None  # when the first text was given to the model
        self._logged = clock()

    @property
    def total(self) -> int:
        if self.files_read == self.files or not self._size_read:
            return self._pieces
        return max(self._pieces, round(self._pieces * self._size / self._size_read))

    @property
    def rate(self) -> float:
        """Pieces embedded in a second; 0 until that can be said."""
        seconds = 0.0 if self._began is None else self._clock() - self._began
        return self._embedded / seconds if seconds > 0 else 0.0

    @property
    def left(self) -> float | None:
        """Seconds; None until that can be said."""
        return (self.total - self.done) / self.rate if self.rate else None

    def read(self, size: int, pieces: int, known: int) -> None:
        """A file of so many bytes and pieces has been read, of which `known` have vectors already."""
        self.files_read += 1
        self._size_read += size
        self._pieces += pieces
        self.done += known

    def embedding(self) -> None:
        """Texts are given to the model."""
        if self._began is None:
            self._began = self._clock()

    def made(self, pieces: int) -> None:
        """So many pieces have got their vectors from the model."""
        self._embedded += pieces
        self.done += pieces

    def due(self) -> bool:
        """Whether it is time to write a line into the log; the answer is yes once in a few seconds."""
        now = self._clock()
        if now - self._logged < LOG_EVERY:
            return False
        self._logged = now
        return True

    def __str__(self) -> str:
        about = "" if self.files_read == self.files else "about "
        if not self._pieces:
            said = f"reading: {self.files_read:,} of {self.files:,} files"
        else:
            said = f"indexing: {self.done:,} of {about}{self.total:,} pieces"
        if self.trouble:
            return f"{said}; waiting for the embedding model: {self.trouble}"
        return said if self.left is None else f"{said}, {duration(self.left)} left"


def duration(seconds: float) -> str:
    """In one unit, rounded."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"
