"""May a stored answer serve another question? The decision over the nearest stored questions.

No similarity is safe alone: the nearest pairs of all are those that differ in one word. So every candidate loses what
the guards find against it, and the best one is then weighed against its surroundings:

- the *margin* to the nearest candidate with another answer;
- the *votes* of other candidates with the same answer, and how far all agree: many wordings of one answer around a
  question are evidence that its own wording does not matter either;
- words that the asked question has and none of those wordings, in place of words that all of those have, are evidence
  that it does.

A lone candidate gets none of this: nothing is known about what lies around it. It must be nearer, and with a word
exchanged it is refused. So must a candidate that alone has its answer, whatever else is near.

The figures were chosen on four streams of requests and on pairs of questions, halves against halves.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from cache.semantic.guards import Comparison, compare, met
from cache.semantic.lexicon import ENGLISH
from cache.semantic.signature import Signature, signature

NEIGHBOURS = 8
"""How many of the nearest stored questions are asked for."""

DEFAULT_THRESHOLD = 0.9

_VETO = 1.0
_FIRM = 1.0
_ALONE = {"": 0.08, "weak": 0.03, "extra": 0.0, "words": -0.05, "scope": -0.3, "swapped": -0.3}
_AMONG = {"": 0.05, "weak": 0.02, "extra": 0.0, "words": 0.0, "scope": 0.0, "swapped": -0.05}
"""What differing words add, by kind: for a candidate that alone has its answer, and for one of several in a context
where all neighbours are known."""

_STRANGE = -0.09
"""What it costs to share no word at all; others with the answer make up for it."""

_FLOOR, _CAP, _FAIR = 0.4, 0.25, 0.22
"""A margin counts from this similarity, up to this width, and helps beyond this one."""

_NEAR, _VOTE, _UNANIMITY, _SHARE = 0.2, 0.03, 0.08, 0.25
"""Votes count within this distance; what their doubling and unanimity add; the share from which there is any."""

REACH = 0.28
"""The most that a score can be above its similarity: by the kindest wording, margin and votes. Texts that are further
below the threshold need not be read."""

_WORDY = ("swapped", "scope", "words", "extra")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A stored question: its cosine `similarity` to the asked one; equal `answer` means the same answer group."""

    text: str
    similarity: float
    answer: Hashable


@dataclass(frozen=True, slots=True)
class Verdict:
    """`chosen` indexes the candidates; None is a refusal, with the `reason` that the best candidate met: a guard's
    code, "margin" or "similarity". `score` is what was compared with the threshold."""

    chosen: int | None
    score: float
    reason: str


@dataclass(frozen=True, slots=True)
class _Judged:
    score: float
    text: Signature
    found: Comparison
    answer: Hashable


def verify(
    asked: str, candidates: Sequence[Candidate], *, threshold: float = DEFAULT_THRESHOLD, strict: bool = False
) -> Verdict:
    """`candidates`: nearest first, at most NEIGHBOURS of them. `strict`: what a guard finds cannot be outweighed."""
    if not candidates or not all(math.isfinite(candidate.similarity) for candidate in candidates):
        return Verdict(None, 0.0, "similarity")
    nearest = max(candidate.similarity for candidate in candidates)
    if nearest + REACH < threshold:
        return Verdict(None, nearest, "similarity")
    mine = signature(asked)
    judged = _judge(mine, candidates)
    at = max(range(len(judged)), key=lambda i: judged[i].score)
    best = judged[at]
    margin = _margin(best, judged)
    score = best.score + margin + _agreement(best, judged)
    if _firm(mine, best, judged):
        score -= _FIRM
    codes = [code for code in best.found.codes if not strict or code not in ("extra", "words")]
    if score >= threshold and not (strict and codes):
        return Verdict(at, score, "")
    if best.found.codes:
        return Verdict(None, score, best.found.codes[0])
    return Verdict(None, score, "margin" if margin < 0 and score - margin >= threshold else "similarity")


def _judge(mine: Signature, candidates: Sequence[Candidate]) -> list[_Judged]:
    theirs = [signature(candidate.text) for candidate in candidates]
    sizes = Counter(candidate.answer for candidate in candidates)
    known = _known(len(candidates))
    out = []
    for candidate, other in zip(candidates, theirs, strict=True):
        found = compare(mine, other)
        among = known if sizes[candidate.answer] > 1 else 0.0
        score = candidate.similarity - _objections(found) + _wording(found, among)
        out.append(_Judged(score, other, found, candidate.answer))
    return out


def _known(count: int) -> float:
    """How much of a question's surroundings that many neighbours show."""
    return min(1.0, (count - 1) / (NEIGHBOURS - 1))


def _objections(found: Comparison) -> float:
    return 0.0 if all(code in _WORDY for code in found.codes) else _VETO


def _wording(found: Comparison, among: float) -> float:
    kind = found.codes[-1] if found.codes else ""
    if kind and kind not in _WORDY:
        return 0.0
    if not found.shared:
        return _STRANGE * (1 - among)
    if kind == "extra" and found.asked + found.stored < 0.5:
        kind = "weak"
    return among * _AMONG[kind] + (1 - among) * _ALONE[kind]


def _firm(asked: Signature, best: _Judged, judged: list[_Judged]) -> bool:
    """Do the words that differ matter to all wordings alike? That is so where the asked question has a word that none
    of them has, in place of one that all of them have, or where either of it makes the question a wider or narrower
    one."""
    group = [j.text for j in judged if j.answer == best.answer]
    kind = best.found.codes[-1] if best.found.codes else ""
    if len(group) < 2 or kind not in ("swapped", "scope", "words"):
        return False
    anywhere = frozenset().union(*(other.words for other in group))
    new = any(known[0] not in ENGLISH.weak and not met(known, anywhere) for known in asked.terms)
    gone = any(
        known[0] not in ENGLISH.weak and not met(known, asked.words) and all(met(known, other.words) for other in group)
        for known in best.text.terms
    )
    return (new or gone) if kind == "scope" else (new and gone)


def _margin(best: _Judged, judged: list[_Judged]) -> float:
    other = max((j.score for j in judged if j.answer != best.answer), default=_FLOOR)
    margin = min(best.score - max(other, _FLOOR), _CAP) - _FAIR
    return margin * _known(len(judged)) if margin > 0 else margin


def _agreement(best: _Judged, judged: list[_Judged]) -> float:
    same = [j for j in judged if j.answer == best.answer]
    votes = sum(max(0.0, min(1.0, 1 - (best.score - j.score) / _NEAR)) for j in same)
    unanimity = max(0.0, len(same) / len(judged) - _SHARE) / (1 - _SHARE)
    return _VOTE * math.log2(max(votes, 1.0)) + _UNANIMITY * unanimity * _known(len(judged))
