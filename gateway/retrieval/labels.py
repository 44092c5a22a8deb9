"""Names of documents outside their retriever: in an entry's `documents`, in headers, in purges.

    handbook/leave.md          the document, whatever its version
    handbook/leave.md@3f2a9c1b one version of it

The id is percent-encoded but for what is plain in a path, so that a name is printable ASCII without blanks, commas or
`@`, whatever a document is called.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from hashlib import blake2b
from urllib.parse import quote, unquote

VERSION_SHOWN = 16
"""Characters of a digest that a label shows."""
LONGEST_VERSION = 32
"""Characters of another version that a label shows; a digest stands for a longer one."""
MOST_SHOWN = 4_000
"""Characters of a header: clients and proxies refuse heads of 8 to 16 KiB."""


def label(retriever: str, document: str) -> str:
    # In NFC: the same name may be written in two ways, and who types it writes it in another than the file system.
    return f"{quote(retriever, safe='')}/{quote(unicodedata.normalize('NFC', document), safe='/')}"


def versioned(retriever: str, document: str, version: str) -> str:
    return f"{label(retriever, document)}@{_shown(version)}"


def _shown(version: str) -> str:
    if _DIGEST.fullmatch(version):
        return version[:VERSION_SHOWN]
    quoted = quote(version, safe="")
    # Not cut: times and URNs often begin alike.
    if len(quoted) > LONGEST_VERSION:
        return blake2b(version.encode(), digest_size=VERSION_SHOWN // 2).hexdigest()
    return quoted


_DIGEST = re.compile(r"[0-9a-f]{32,}")


def labels(retriever: str, documents: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Both labels of each (id, version), each once, in the order given."""
    found: dict[str, None] = {}
    for document, version in documents:
        found[label(retriever, document)] = None
        found[versioned(retriever, document, version)] = None
    return tuple(found)


def shown(documents: Sequence[str]) -> str:
    """Of an entry's documents the versions: the value of `x-refrain-documents`. What does not fit is left out, and the
    last one is then `...`."""
    value = ""
    for document in documents:
        if "@" not in document:
            continue
        longer = f"{value}, {document}" if value else document
        if len(longer) > MOST_SHOWN:
            return f"{value}, ..." if value else "..."
        value = longer
    return value


def named(name: str, retrievers: Iterable[str]) -> frozenset[str]:
    """The labels of all that a person may mean by a document's name: a label, with or without a version; a retriever
    and an id as it is spelt there (`handbook/année.md`); or an id alone, which is that document in every retriever.
    An `@` may be part of the id, or begin a version. Better one label too many: no other document has it."""
    found = {name}
    for retriever, document in (*_qualified(name), *((r, name) for r in retrievers)):
        found.add(label(retriever, document))
        id, _, version = document.rpartition("@")
        if id and version:
            found.add(versioned(retriever, id, version))
    return frozenset(found)


def documents_named(name: str, retrievers: Collection[str]) -> list[tuple[str, str]]:
    """The documents, as (retriever, id), that a person may mean by this name: those of one retriever where it begins
    with the name of one."""
    qualified = [(retriever, id) for retriever, id in _qualified(name) if retriever in retrievers]
    return qualified or [(retriever, name) for retriever in retrievers]


def _qualified(name: str) -> list[tuple[str, str]]:
    retriever, _, document = name.partition("/")
    # Percent-encoded as in a label, or really spelt like that.
    return [(retriever, id) for id in dict.fromkeys((document, unquote(document)))] if document else []
