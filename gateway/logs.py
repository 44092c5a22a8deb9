"""Structured logs on stderr: lines of JSON, or readable ones on a terminal. No prompts, no answers, no credentials."""

import logging
import sys
import traceback

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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def where(error: BaseException) -> str:
    """The innermost frames of an error, without its text, which may hold what a client sent."""
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    return " < ".join(f"{f.name} ({f.filename.rpartition('/')[2]}:{f.lineno})" for f in reversed(frames))
