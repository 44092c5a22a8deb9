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

    def feed(self, chunk: bytes) -> list[bytes]:
        events: list[bytes] = []
        self._size += len(chunk)
        # A CR at the end of the rest waits for the LF that may follow it.
        if b"\n" not in chunk and b"\r" not in chunk and not (self._rest and self._rest[-1].endswith(b"\r")):
            self._rest.append(chunk)
        else:
            self._lines(b"".join([*self._rest, chunk]), events)
        if self._size + self._held > MAX_EVENT:
            raise EventTooLarge
        return events

    def finish(self) -> list[bytes]:
        """The stream is over: a last line without its line end still counts, a last event without its empty line
        does too (some servers leave it out)."""
        events: list[bytes] = []
        self._line(b"".join(self._rest).rstrip(b"\r"), events)
        self._rest = []
        self._line(b"", events)
        return events

    def _lines(self, buffer: bytes, events: list[bytes]) -> None:
        start = 0
        while (end := _line_end(buffer, start)) is not None:
            stop, following = end
            self._line(buffer[start:stop], events)
            start = following
        self._rest = [buffer[start:]]
        self._size = len(buffer) - start

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


def _line_end(buffer: bytes, start: int) -> tuple[int, int] | None:
    """(end of the line, start of the next), or None while the line is not complete."""
    lf = buffer.find(b"\n", start)
    cr = buffer.find(b"\r", start, lf if lf >= 0 else len(buffer))
    if cr < 0:
        return None if lf < 0 else (lf, lf + 1)
    if cr + 1 == len(buffer):
        return None  # the LF of a CRLF may be in the next chunk
    return (cr, cr + 2) if buffer[cr + 1] == 0x0A else (cr, cr + 1)


def event(data: bytes) -> bytes:
    """One event on the wire. `data` is JSON without raw line ends."""
    return b"data: " + data + b"\n\n"
