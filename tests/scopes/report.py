"""What a run of sequences has counted, in words and as data."""

from collections.abc import Mapping
from typing import Any

from tests.scopes.run import Found, Result

ROWS = {
    "sequences": "sequences",
    "stored": "  with a store behind the memory",
    "requests": "requests",
    "exact": "  exact",
    "byte_identical": "    of them byte-identical",
    "joined": "  joined",
    "stale": "  stale",
    "semantic": "  semantic",
    "remembered": "    of them without a search",
    "miss": "  miss",
    "bypass": "  bypass",
    "not_cached": "  only if cached, and not cached",
    "refused": "  no valid key",
    "not_allowed": "  not allowed at the endpoint",
    "failed": "  the backend failed",
    "left": "  left before anything came",
    "checked": "answers checked",
    "opportunities": "  answered before for another scope or endpoint",
    "likes": "  asked before in other words and circumstances",
    "expiries": "  made anew, the older one being past its life",
    "purges": "purges",
    "reports": "answers reported as wrong",
    "revoked": "keys revoked",
    "reloads": "changes of the settings",
}


def figures(result: Result, rows: Mapping[str, str] = ROWS) -> dict[str, Any]:
    counts = {name: result.counts[name] for name in rows}
    found = result.found
    out = {**counts, "violations": int(found is not None), "unseen": result.unseen, "seconds": round(result.seconds, 1)}
    if found is not None:
        out["found"] = {"seed": found.seed, "rule": found.leak.rule, "text": str(found.leak), "steps": _steps(found)}
    return out


def text(result: Result, rows: Mapping[str, str] = ROWS) -> str:
    lines = [f"{words:50}{result.counts[name]:>9,}" for name, words in rows.items()]
    lines.append(f"{'violations':50}{int(result.found is not None):>9,}")
    lines.append(f"{'seconds':50}{result.seconds:>9,.1f}")
    if result.unseen:
        lines.append(f"\nNever happened: {', '.join(result.unseen)}.")
    if result.found is not None:
        lines.append("\n" + explain(result.found))
    return "\n".join(lines)


def explain(found: Found) -> str:
    """The broken rule, and how to see it broken again."""
    keys = [f"  {key}" for key in found.world.keys]
    endpoints = [f"  {name}: {policy}" for name, policy in found.world.endpoints.items()]
    steps = [f"  {number}. {step}" for number, step in enumerate(_steps(found), 1)]
    head = f"Seed {found.seed} (--seed {found.seed} --sequences 1) breaks a rule: {found.leak}"
    return "\n".join([head, "keys", *keys, "endpoints", *endpoints, "steps", *steps])


def _steps(found: Found) -> list[str]:
    return [repr(step) for step in found.steps]
