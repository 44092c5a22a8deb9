"""The cookie of the dashboard, and whether a request that carries it was made by the dashboard's own page.

A browser sends a cookie along with whatever request any page makes, so the cookie alone proves nothing about who asks.
`SameSite=Strict` keeps it from other sites, but another port of this host is the same site, and so is another name of
the same domain: those are told apart by what the browser says about a request, which no page can change.
"""

from gateway.asgi import Headers

NAME = "refrain_session"
SAFE = frozenset({"GET", "HEAD"})
"""Methods that change nothing."""


def read_cookie(headers: Headers) -> str | None:
    """The value of the session's cookie. None: there is none."""
    for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
        name, _, value = pair.strip().partition("=")
        if name == NAME and value:
            return value
    return None


def set_cookie(value: str, seconds: int, headers: Headers) -> str:
    """The header that keeps the value for so long; 0 seconds: that forgets it. `headers` are those of the request that
    it answers. No script can read it, and what came by https goes by https only."""
    secure = "; Secure" if _by_https(headers) else ""
    return f"{NAME}={value}; Max-Age={seconds}; Path=/; HttpOnly; SameSite=Strict{secure}"


def from_own_page(method: str, headers: Headers) -> bool:
    """Was this request made by a page of this very origin, or, if it only reads, by the person at the browser?"""
    site = headers.get(b"sec-fetch-site")
    if site is not None:
        return site == b"same-origin" or (site == b"none" and method in SAFE)
    # Old browsers, and all of them over plain http to another machine, send no such header. They send an Origin with
    # everything that changes something, and never show a page what another origin has answered to its reading.
    origin = headers.get(b"origin")
    return method in SAFE if origin is None else _host_of(origin) == headers.get(b"host", b"").lower()


def _host_of(origin: bytes) -> bytes | None:
    """The host and port of an origin. None for `null`, which a page without an origin sends."""
    scheme, found, host = origin.partition(b"://")
    return host.lower() if found and host and scheme in (b"http", b"https") else None


def _by_https(headers: Headers) -> bool:
    """TLS ends at a proxy in front; which scheme the browser sees, it says itself in the Origin of its request."""
    return headers.get(b"origin", b"").startswith(b"https://")
