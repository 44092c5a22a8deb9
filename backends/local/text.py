"""From tokens to text that may be shown, without I/O.

A token is not a character: a byte-level token may end inside one. And text may be the beginning of a stop string,
which is never shown. Both pieces hold back what is not certain yet, so however the tokens fall, the pieces joined are
the same text.
"""

from collections.abc import Callable, Sequence

# What bytes that are no character decode to. At the end of a text it may be a character that is not complete yet: one
# for it in byte-level tokenizers; in byte-fallback ones, one for each byte of the whole run that it stands in.
REPLACEMENT = "\ufffd"
PATIENCE = 32
"""Tokens without a character to show (special tokens, bytes that are none) after which they are dropped: the window
must not grow with the answer. A character has at most four bytes."""


class Detokenizer:
    """Decodes a growing sequence in windows, so that the cost of a token does not grow with the answer.

    `decode` turns token ids into text, with U+FFFD for bytes that are no character (yet).
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._context = 0  # how many ids of the window are there only as left context: some decoders trim a first space
        self._shown = 0  # characters of the window's text that were given out

    def push(self, token: int) -> str:
        """The text that this token completes; "" while a character is incomplete. What is incomplete at the end of
        the answer is never given out, nor what comes to nothing in PATIENCE tokens."""
        self._window.append(token)
        text = self._decode(self._window)
        complete = len(text.rstrip(REPLACEMENT))
        if complete <= self._shown and len(self._window) - self._context >= PATIENCE:
            del self._window[self._context :]
            self._shown = len(self._decode(self._window))
            return ""
        new = text[self._shown : complete]
        self._shown = max(self._shown, complete)
        if new and complete == len(text):
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._shown = len(self._decode(self._window))
        return new


class StopMatcher:
    """Cuts a text before the first stop string that is completed in it; of two completed by the same character the
    longer one counts. `matched` says whether that has happened."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = stops
        self._held = ""
        self.matched = False

    def push(self, text: str) -> str:
        """The text that can be shown now. Nothing is shown after a match."""
        if self.matched:
            return ""
        self._held += text
        found = [(start + len(stop), start) for stop in self._stops if (start := self._held.find(stop)) >= 0]
        if found:
            self.matched = True
            return self._held[: min(found)[1]]
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        border = len(self._held) - keep
        shown, self._held = self._held[:border], self._held[border:]
        return shown

    def finish(self) -> str:
        """What was held back, when no more text comes."""
        return "" if self.matched else self._held


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that is a beginning of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
