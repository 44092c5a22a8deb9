"""What is asked: a few questions, each in several wordings, and the turns that come before them.

Two questions lie at one place, as near to each other as two wordings of one: only a verifier tells them apart.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Wording:
    """`asks`: equal for those whose answer is the same; `place`: equal for those that an embedder takes for alike."""

    text: str
    asks: str
    place: str


WORDINGS = (
    Wording("How do I reset my password?", "reset", "password"),
    Wording("How can I reset my password?", "reset", "password"),
    Wording("What is the way to reset my password?", "reset", "password"),
    Wording("How do I not reset my password?", "keep", "password"),
    Wording("How do I disable my account?", "disable", "account"),
    Wording("How can I disable my account?", "disable", "account"),
)

EARLIER: tuple[tuple[dict[str, str], ...], ...] = (
    (),
    ({"role": "system", "content": "Be brief."},),
    ({"role": "system", "content": "Be polite."},),
    ({"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello!"}),
    ({"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Good day!"}),
)


def place_of(text: str) -> str:
    """Where an embedder puts this text."""
    return PLACES[text]


def others_like(prompt: int) -> list[int]:
    """The other wordings at the place of this one."""
    return [n for n, wording in enumerate(WORDINGS) if n != prompt and wording.place == WORDINGS[prompt].place]


PLACES = {wording.text: wording.place for wording in WORDINGS}
