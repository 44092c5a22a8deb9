"""Every reason code in words: what a tier says of a request, and why an answer was not kept.

The codes are what programs compare; these sentences are what people read. A code without one fails a test.
"""

from collections.abc import Mapping

from gateway.errors import shorten
from gateway.latency.budget import OVER_BUDGET

REQUEST: Mapping[str, str] = {
    "tier_off": "This endpoint keeps no answers. Set cache.exact of the endpoint to have them reused.",
    "tier_not_asked": "The request left out, by x-refrain-tier, every tier that keeps answers here.",
    "no_store": "The request said no-store, so no cache was used. Leave it out to have the answer reused.",
    "store_requested": "The request said store: true, so the provider has to see it. Leave it out to use the cache.",
    "stateful": "The request goes on from what the provider keeps (previous_response_id, conversation, background), so "
    "its answer is for nobody else.",
    "hosted_tool": "A tool of the request runs at the provider, with effects and fresh data, so nothing is reused.",
    "audio": "The request asks for sound, which is not kept.",
    "retriever_down": "The documents could not be searched, so the answer was made without them, and not kept.",
    "sampled": "This endpoint reuses only answers to an explicit temperature of 0. Send that, or set sampled: reuse on "
    "the endpoint.",
}
"""Why no cache may be used for a request at all (outcome `bypass`)."""

EXACT: Mapping[str, str] = {
    "no_cache": "The request asked for a fresh answer (no-cache or max-age=0).",
    "tier_not_asked": "The request left the exact tier out, by x-refrain-tier.",
    OVER_BUDGET: "The look-up was expected to take longer than what was left of the endpoint's budget.",
    "expired": "A stored answer was there, but past its life. The endpoint's ttl says how long answers live.",
    "older_than_asked": "A stored answer was there, but older than the request accepts (max-age).",
    "made_in_future": "A stored answer was there, but by its date it was made in the future: a clock was set back.",
    "byte_identical": "The same bytes were answered before.",
    "stale_while_revalidate": "The answer is past its life, and another one is being fetched.",
    "fallback": "The request's own backend has failed, and the one that stands in for it had answered this before.",
    "stale_if_error": "The answer is past its life, and stands in for an error of the backend.",
}
"""What the exact tier says beside hit or miss."""

NOT_STORED: Mapping[str, str] = {
    "no_end_marker": "its stream ended without an end marker, so it may have been cut",
    "ttl_zero": "it was to live for no time at all (x-refrain-ttl or the ttl of the cache object)",
    "policy_changed": "the configuration was changed while it was made",
    "error_in_answer": "it held an error",
    "no_choices": "it did not have the shape of an answer",
    "choices_missing": "it had another number of choices than was asked for",
    "empty": "it was empty",
    "too_large": "it was larger than store.max_entry",
    "purged_meanwhile": "a purge met it while it was made",
    "store_unavailable": "the store did not answer",
    "finish_reason_length": "it was cut off at its greatest length. Ask for more tokens to have it whole",
    "finish_reason_content_filter": "the provider has filtered it",
    "finish_reason_missing": "it did not say that it had ended",
    "client_left": "its client left before it was whole. With finish: true the endpoint finishes such answers",
}
"""Why an answer was not kept, beside the codes of REQUEST; what the backend calls an end is `finish_reason_...`."""

NOT_ASKED: Mapping[str, str] = {
    "tier_off": "it is off for this endpoint",
    "tier_not_asked": "the request left it out, by x-refrain-tier",
    "no_cache": "the request asked for a fresh answer",
    OVER_BUDGET: "it was expected to take longer than what was left of the endpoint's budget",
    "not_chat": "it serves chat completions only",
    "tools": "the request has tools",
    "several_choices": "the request wants several choices",
    "logprobs": "the request wants log probabilities",
    "tool_results": "the conversation holds calls or results of tools",
    "not_text": "the conversation holds more than text",
    "not_a_user_turn": "the last turn is not the user's",
    "empty": "the last turn is empty",
    "too_long": "the last turn is longer than max_words, or than the embedder reads",
    "about_now": "the question is about now",
    "failed": "it failed on this request; see the gateway's log",
    "embedder_starting": "its embedder is still starting",
    "embedder_ready": "its embedder has only just become ready",
    "embedder_deadline": "its embedder was too slow",
    "embedder_busy": "its embedder had too much to do",
    "embedder_failed": "its embedder has failed; see the gateway's log",
    "embedder_unavailable": "its embedder cannot be reached",
    "embedder_bad_vector": "its embedder gave no usable vector",
    "first_in_context": "it knows no other question to the same model with the same settings and earlier turns",
}
"""Why the semantic tier compared nothing."""

REFUSED: Mapping[str, str] = {
    "number": "numbers differ",
    "unit": "units differ",
    "date": "dates or times differ",
    "language": "languages differ",
    "format": "formats differ",
    "manner": "the manner asked for differs",
    "action": "what is to be done differs",
    "asks": "what is asked for differs",
    "sign": "signs of arithmetic differ",
    "quoted": "quoted texts differ",
    "code": "code differs",
    "antonym": "one says the contrary of the other",
    "negation": "one is negated and the other is not",
    "direction": "the same things stand in each other's place",
    "name": "names differ",
    "length": "one is far longer than the other",
    "template": "they share a long text and differ in its short variable part",
    "foreign": "words differ, in a language whose words it does not know",
    "swapped": "a word is exchanged for another",
    "words": "several words differ",
    "scope": "a word makes one of them wider or narrower",
    "extra": "one has words that the other lacks",
}
"""What the verifier has found against the nearest question."""

UNUSABLE: Mapping[str, str] = {
    "similarity": "which is not near enough",
    "margin": "but one with another answer is nearly as near",
    "expired": "but the answer is past its life, or older than the request accepts",
    "gone": "but the answer is no longer kept",
    "reported_wrong": "but the answer was reported to be wrong for this question",
    "nothing_near": "and nothing is near enough",
}
"""Why the semantic tier served nothing that it had compared."""


RETRIEVAL: Mapping[str, str] = {
    "no_question": "The request asks nothing that documents could be searched for.",
    "no_cache": "The request asked for a fresh answer, so the documents were searched anew.",
    "no_store": "The request said no-store, so the documents were searched anew, and what was found was not kept.",
    "tier_not_asked": "The request left the retrieval tier out, by x-refrain-tier.",
    "joined": "The same was being searched for already.",
    "text_gone": "What was found was known, but the text of a piece was no longer kept, so it was searched anew.",
    "starting": "The documents are still being read.",
    "busy": "The search service had too much to do.",
    "deadline": "The search took too long.",
    "unavailable": "The search service cannot be reached.",
    "bad_results": "The search service gave results that cannot be used.",
    "failed": "The search failed; see the gateway's log.",
}
"""What the retrieval tier says beside hit or miss."""


def bare(code: str) -> str:
    """What is said of a code that nobody here knows: the backends have words of their own."""
    return shorten(code.replace("_", " "))


def not_stored(code: str) -> str:
    """Why an answer was not kept, as half a sentence or as one."""
    if code in NOT_STORED or code in REQUEST:
        return NOT_STORED.get(code) or REQUEST[code]
    end = code.removeprefix("finish_reason_")
    if end != code:
        return f"it ended with {shorten(end)!r}, and only answers that end with stop or tool_calls are kept"
    return bare(code)


def semantic(code: str, similarity: float | None) -> str:
    """What the semantic tier says when it serves nothing. `similarity` is that of the nearest question (cosine)."""
    if code in NOT_ASKED and similarity is None:
        return f"The semantic tier compared nothing: {NOT_ASKED[code]}."
    near = "The nearest question" + (" is known" if similarity is None else f" has similarity {similarity:.2f}")
    if code in REFUSED:
        return f"{near}, and the verifier refused it: {REFUSED[code]}."
    if code in UNUSABLE:
        return "No question is near." if similarity is None and code == "nothing_near" else f"{near}, {UNUSABLE[code]}."
    return f"The semantic tier served nothing: {NOT_ASKED.get(code) or bare(code)}."


def tier(name: str, result: str, code: str | None, similarity: float | None = None) -> str:
    """One tier's word as a sentence; "" where hit or miss says it all."""
    if name == "semantic" and result == "hit":
        near = "" if similarity is None else f" (similarity {similarity:.2f})"
        return f"A question that means the same was answered before{near}" + (", as remembered." if code else ".")
    if name == "semantic":
        return semantic(code or "nothing_near", similarity)
    if code is None:
        return ""
    if name == "retrieval":
        return RETRIEVAL.get(code) or f"{bare(code).capitalize()}."
    return EXACT.get(code) or REQUEST.get(code) or f"{bare(code).capitalize()}."
