"""What the semantic tier keeps of a question, beside the entry that answers it."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Question:
    """`key` is its entry's; `context` the 32-byte digest of all that must be equal before its answer is thinkable for
    another question; `text` what was asked. `vector` is little-endian float32, of unit length, made by `embedder`;
    both are empty while nothing else was asked in that context. `same` names answers by 32-byte digests: its own, and
    then others that say the same. A name is of one answer, not of its key, which may get another one."""

    key: bytes
    context: bytes
    text: str = field(repr=False)
    embedder: str = ""
    vector: bytes = field(default=b"", repr=False)
    same: tuple[bytes, ...] = ()
