"""Structured logs on stderr: lines of JSON, or readable ones on a terminal. No prompts, no answers, no credentials."""

import logging
import sys
import traceback
from contextlib import suppress

import structlog


def configure() -> None:
    """Set up logging for this process."""
    terminal = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer() if terminal else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=lambda *_: _Logger(sys.stderr),
        cache_logger_on_first_use=True,
    )
    for name in ("cache", "backends"):
        library = logging.getLogger(name)
        library.handlers = [_Forward()]
        library.setLevel(logging.INFO)
        library.propagate = False


class _Logger(structlog.PrintLogger):
    """A line that cannot be written (the disk is full, its reader has gone) is lost, and nothing else is."""

    def msg(self, message: str) -> None:
        with suppress(OSError):
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


class _Forward(logging.Handler):
    """What the libraries below say through `logging` becomes lines like ours. Of an exception only where it was."""

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        details = {} if error is None else {"kind": type(error).__name__, "where": where(error)}
        structlog.get_logger("refrain").log(record.levelno, record.getMessage(), **details)


def where(error: BaseException) -> str:
    """The innermost frames of an error, without its text, which may hold what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{f.name} ({f.filename.rpartition('/')[2]}:{f.lineno})" for f in reversed(frames))
