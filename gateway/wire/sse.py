"""Server-sent events, without I/O: bytes in any split -> the data of each event.

Lines end with CR, LF or CRLF, an event ends with an empty line, `:` starts a comment. Splitting happens on bytes, so
a character cut in two by the network is never decoded in halves.
"""

DONE = b"[DONE]"
DONE_EVENT = b"data: [DONE]\n\n"
MAX_EVENT = 16 * 2**20
LINE = 64


class EventTooLarge(Exception):
    """One event grew over MAX_EVENT bytes without ending."""


class EventParser:
    """Feed it bytes; it returns the `data` of the events that are complete."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []  # pieces of a line that has not ended; joined once, however many they are
        self._data: list[bytes] = []
        self._held = 0  # bytes in _data; a line counts some even when empty, for its place in the list
        self._size = 0  # bytes in _rest
        self._first = True
        self._after_cr = False

    def feed(self, chunk: bytes) -> list[bytes]:
        # A CR has ended its line already: whoever ends lines so must not wait for the next bytes. An LF right after
        # it belongs to it, also when it comes with the next bytes.
        if self._after_cr and chunk:
            chunk = chunk.removeprefix(b"\n")
            self._after_cr = False
        events: list[bytes] = []
        cr = b"\r" in chunk
        if cr or b"\n" in chunk:
            if cr:
                self._after_cr = chunk.endswith(b"\r")
                chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
            *lines, rest = b"".join([*self._rest, chunk]).split(b"\n")
            for line in lines:
                self._line(line, events)
            self._rest, self._size = [rest], len(rest)
        elif chunk:
            self._rest.append(chunk)
            self._size += len(chunk)
        if self._size + self._held > MAX_EVENT:
            raise EventTooLarge
        return events

    def finish(self) -> list[bytes]:
        """The stream is over: a last line without its line end still counts, a last event without its empty line
        does too (some servers leave it out)."""
        events: list[bytes] = []
        self._line(b"".join(self._rest), events)
        self._rest, self._size = [], 0
        self._line(b"", events)
        return events

    def _line(self, line: bytes, events: list[bytes]) -> None:
        if self._first:
            self._first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            if self._data:
                events.append(b"\n".join(self._data))
                self._data, self._held = [], 0
        elif line.startswith(b"data:"):
            value = line[6:] if line[5:6] == b" " else line[5:]
            self._data.append(value)
            self._held += len(value) + LINE
        elif line == b"data":  # a field without a colon has the empty value
            self._data.append(b"")
            self._held += LINE


def event(data: bytes) -> bytes:
    """One event on the wire. `data` is JSON without raw line ends."""
    return b"data: " + data + b"\n\n"
