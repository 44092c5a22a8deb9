"""`python -m benchmarks.blind serve ...`: a gateway that, from one SIGUSR1 to the next, keeps no record of its hits, to
see what the record costs. No ring, no ledger, no metrics: one call feeds them all.

Two processes of the same code differ by some percent, all their lives, which is more than the record costs; so it is
one process that stops and goes on.
"""

import signal
from typing import Any

from gateway.cli import main
from gateway.recorder import Recorder

_record = Recorder.hit
_blind = False


def _switch(*_: Any) -> None:
    global _blind
    _blind = not _blind


def _hit(recorder: Recorder, *facts: Any) -> None:
    if not _blind:
        _record(recorder, *facts)


Recorder.hit = _hit  # type: ignore[method-assign]

if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, _switch)
    main()
