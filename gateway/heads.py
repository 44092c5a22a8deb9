"""Response headers: views of the decision, made in one place so that every path says the same."""

from cache.entry import Entry
from gateway.decisions import Decision, Tier
from gateway.latency.budget import OVER_BUDGET

Header = tuple[bytes, bytes]

# Answers belong to whoever asked: caches between us and them keep out (RFC 9111, 5.2.2.5 and 5.2.2.7).
PRIVATE: Header = (b"cache-control", b"private, no-store")
JSON: Header = (b"content-type", b"application/json")
SSE: Header = (b"content-type", b"text/event-stream; charset=utf-8")
FORWARD_WHY = {"expired": "stale", "older_than_asked": "request", "no_cache": "request"}
FORWARD = {"miss": "miss", "skipped": "bypass"}


def decision_headers(d: Decision) -> list[Header]:
    """Everything the decision says before the first byte."""
    headers = [PRIVATE, (b"x-request-id", d.id.encode())]
    if d.outcome is not None:
        headers.append((b"x-refrain-cache", d.outcome.encode()))
    if d.tiers:
        status = ", ".join(_cache_status(t, d.outcome) for t in reversed(d.tiers) if asked(t))
        headers.append((b"cache-status", status.encode()))
    if d.age is not None:
        headers.append((b"age", b"%d" % d.age))
    if d.phases:
        timing = ", ".join(f"{name};dur={ms:.2f}" for name, ms in d.phases.items())
        headers.append((b"server-timing", timing.encode()))
    if d.upstream_id:
        headers.append((b"x-refrain-upstream-id", header_text(d.upstream_id)))
    if d.documents:
        headers.append((b"x-refrain-documents", d.documents.encode()))
    if d.ms_saved is not None:
        headers.append((b"x-refrain-saved", saved_value(d.saved, d.usd_saved, d.ms_saved)))
    return headers


def header_text(text: str) -> bytes:
    """Text from elsewhere as a header's value: nothing in it can end the header or begin another."""
    return bytes(c if 32 <= c < 127 else 63 for c in text.encode("latin-1", "replace"))


def saved_value(tokens: int, usd: float | None, ms: float) -> bytes:
    """What the upstream call would have taken. No `usd` where no price is known."""
    money = "" if usd is None else f" usd={f'{usd:.8f}'.rstrip('0').rstrip('.')};"
    return f"tokens={tokens};{money} ms={ms:.0f}".encode()


def reuse(d: Decision, entry: Entry, now: float) -> int:
    """Book a reuse of this entry's answer in the decision; gives its age in seconds."""
    d.age = age = entry.age(now)
    d.backend = entry.backend
    d.upstream_id = entry.upstream_id
    usage = entry.usage
    d.input, d.output = usage.input, usage.output
    d.served = d.saved = usage.input + usage.output
    d.usd_saved = entry.cost.usd
    d.ms_saved = entry.cost.ms
    d.status = 200
    return age


def asked(tier: Tier) -> bool:
    """Does Cache-Status speak of it? Of the semantic tier only where the request is one that it can answer; of the
    prefix tier never: what it had is known at the end of an answer, which a stream's head comes before."""
    if tier.name == "semantic" and tier.result == "skipped":
        return tier.why == OVER_BUDGET
    return tier.name != "prefix"


def _cache_status(tier: Tier, outcome: str | None) -> str:
    """One member of Cache-Status (RFC 9211)."""
    if tier.result != "hit":
        joined = outcome == "joined" if tier.name == "exact" else tier.why == "joined"
        forward = f"{tier.name}; fwd={FORWARD_WHY.get(tier.why or '') or FORWARD[tier.result]}"
        forward += "; collapsed" if joined else ""
        return forward if tier.hits is None else f'{forward}; detail="hits={tier.hits}"'
    member = f"{tier.name}; hit" + ("" if tier.ttl is None else f"; ttl={tier.ttl}")
    return member if tier.similarity is None else f'{member}; detail="{similarity_detail(tier.similarity)}"'


def similarity_detail(similarity: float) -> str:
    return f"similarity={similarity:.2f}"
