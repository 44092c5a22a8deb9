"""`GET /dashboard` and what lies below: the page and its files. Open to everyone, since there are no data in them.

The page may load and run nothing but these files, speak to nobody but this gateway, and be shown in nobody's frame:
should a hostile text ever become markup, the browser does nothing with it.
"""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import Response

from gateway.asgi import read_headers
from gateway.dashboard.assets import assets
from gateway.errors import ApiError

if TYPE_CHECKING:
    from gateway.app import Gateway

_POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
}
HEADERS = {
    "content-security-policy": "; ".join(f"{name} {sources}" for name, sources in _POLICY.items()),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Kept, but asked for each time: after an update the page and its scripts are of one version.
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


async def page(gateway: "Gateway", request: Request) -> Response:
    """A file of the page; without a path the page itself. Raises ApiError 404."""
    asset = assets().get(request.path_params.get("path", ""))
    if asset is None:
        raise ApiError(404, "The dashboard has no such file.", code="unknown_url")
    headers = read_headers(request.scope)
    body, etag, packed = asset.form(_accepts_gzip(headers.get(b"accept-encoding", b"")))
    about = {**HEADERS, "etag": etag}
    if _known(headers.get(b"if-none-match", b""), etag):
        return Response(status_code=304, headers=about)
    if packed:
        about["content-encoding"] = "gzip"
    return Response(body, headers=about, media_type=asset.type)


def _accepts_gzip(header: bytes) -> bool:
    for member in header.lower().split(b","):
        name, _, weight = member.replace(b" ", b"").partition(b";q=")
        if name == b"gzip":
            return weight.strip(b"0.") != b"" or not weight
    return False


def _known(header: bytes, etag: str) -> bool:
    tags = {tag.strip().removeprefix("W/") for tag in header.decode("latin-1").split(",")}
    return etag in tags or "*" in tags
