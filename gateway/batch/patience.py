"""What is done about a request of a batch that failed: nobody waits for it, so there is time to try again.

- What the request itself is at fault for is told at once (400, 404, 413, 422, ...).
- While nobody is there to answer (the backend cannot be reached, is starting, or has too much to do) it waits, as long
  as the batch lasts.
- A provider that has enough for now (429) mostly has room again soon, but may mean that it will never have any for
  this request: TURNED_AWAY times, which is a quarter of an hour at least.
- Any other failure may be the request's own doing (one that crashes the server, one too long for its timeout), so that
  is tried ATTEMPTS times.

Waits double from FIRST to LONGEST seconds, each spread over its half (as AWS's "equal jitter"), or are what the answer
asks for.
"""

from gateway.batch.inside import Answer

ATTEMPTS = 3
TURNED_AWAY = 20
FIRST = 0.5
LONGEST = 60.0
NOBODYS = frozenset({"backend_unreachable", "backend_starting", "backend_overloaded", "gateway_stopping"})
"""Codes of failures that say nothing about the request."""
PASSING = frozenset({408, 409, 429, 500, 502, 503, 504, 529})


def wait_before_next(failure: Answer, code: str, tries: int, failed: int, jitter: float) -> float | None:
    """Seconds until it is tried again, after `tries` in all, of which `failed` may be the request's own doing; None: it
    stays failed. `jitter` is drawn from 0 to 1."""
    if failure.status not in PASSING:
        return None
    most = TURNED_AWAY if failure.status == 429 and code != "insufficient_quota" else ATTEMPTS
    if code not in NOBODYS and (failed >= most or failure.headers.get("x-should-retry") == "false"):
        return None
    asked = failure.headers.get("retry-after", "")
    if asked.isascii() and asked.isdigit() and len(asked) < 9:
        return float(max(1, int(asked)))
    longest: float = min(LONGEST, FIRST * 2 ** min(tries, 20))
    return longest / 2 * (1 + jitter)


def own_doing(code: str) -> bool:
    """May the request itself be at fault?"""
    return code not in NOBODYS
