"""The files of the dashboard's page, read once. A path is looked up among them, never in the file system."""

import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath

TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml; charset=utf-8",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
"""Media types by suffix. What has another one is not served."""
TEXT = frozenset({".css", ".html", ".js", ".svg", ".txt"})
INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class Asset:
    """`packed` is the gzip form, where it is smaller. Each form has a validator of its own (RFC 9110, 8.8.3)."""

    type: str
    body: bytes = field(repr=False)
    packed: bytes | None = field(repr=False)
    etag: str

    def form(self, gzip_accepted: bool) -> tuple[bytes, str, bool]:
        """The bytes to send, their validator, and whether they are packed."""
        if gzip_accepted and self.packed is not None:
            return self.packed, f'"{self.etag}-gz"', True
        return self.body, f'"{self.etag}"', False


@cache
def assets() -> Mapping[str, Asset]:
    """By path below `/dashboard/`; the page itself is at ""."""
    found = dict(_below(files("gateway.dashboard") / "static", PurePosixPath()))
    if INDEX in found:
        found[""] = found[INDEX]
    return found


def _below(folder: Traversable, path: PurePosixPath) -> Iterator[tuple[str, Asset]]:
    for item in folder.iterdir():
        here = path / item.name
        if item.is_dir():
            yield from _below(item, here)
        elif here.suffix in TYPES:
            yield here.as_posix(), _asset(here.suffix, item.read_bytes())


def _asset(suffix: str, body: bytes) -> Asset:
    packed = gzip.compress(body, mtime=0) if suffix in TEXT else body
    digest = blake2b(body, digest_size=16).hexdigest()
    return Asset(TYPES[suffix], body, packed if len(packed) < len(body) else None, digest)
