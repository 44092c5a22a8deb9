"""May this request be answered from a cache, and may this answer be kept? Pure decisions, each with its reason.

A reason is a short code that lands in the decision record, so that "why was this not cached?" has an answer.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from gateway.normalize import Api

HOSTED_TOOLS_PARAM = "web_search_options"
STATEFUL = ("previous_response_id", "conversation", "background")
STORABLE_ENDS = frozenset({"stop", "tool_calls"})


def request_reason(body: Mapping[str, Any], *, sampled: Literal["reuse", "bypass"]) -> str | None:
    """Why this request must pass by every cache (neither look-up nor store), or None."""
    if body.get("store"):
        return "store_requested"
    if any(body.get(name) for name in STATEFUL):
        return "stateful"
    if body.get(HOSTED_TOOLS_PARAM) is not None or _hosted_tool(body.get("tools")):
        return "hosted_tool"
    modalities = body.get("modalities")
    if body.get("audio") is not None or (isinstance(modalities, list) and "audio" in modalities):
        return "audio"
    if sampled == "bypass" and not _deterministic(body):
        return "sampled"
    return None


def answer_reason(api: Api, answer: Mapping[str, Any], *, asked: int) -> str | None:
    """Why this answer must not be stored, or None. `asked` is the request's `n`."""
    if answer.get("error"):
        return "error_in_answer"
    if not well_formed(api, answer):
        return "no_choices"
    choices = answer["choices"]
    if len(choices) != asked:
        return "choices_missing"
    for choice in choices:
        end = choice.get("finish_reason")
        if not isinstance(end, str) or end not in STORABLE_ENDS:
            return f"finish_reason_{end if isinstance(end, str) else 'missing'}"[:48]
        if _empty(api, choice):
            return "empty"
    return None


def well_formed(api: Api, answer: Mapping[str, Any]) -> bool:
    """Does the answer have the shape of its API, as far as we rely on it?"""
    choices = answer.get("choices")
    if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
        return False
    if not all(type(c.get("index")) is int for c in choices) or len({c["index"] for c in choices}) < len(choices):
        return False
    if api == "completions":
        return all(isinstance(c.get("text"), str) for c in choices)
    return all(isinstance(c.get("message"), dict) and _objects(c["message"].get("tool_calls")) for c in choices)


def _objects(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, dict) for item in value))


def asked_choices(body: Mapping[str, Any]) -> int:
    """How many choices a complete answer has: `n` for each prompt, and legacy completions take several prompts."""
    n = body.get("n")
    prompt = body.get("prompt")
    # A list of numbers is one prompt, already in tokens.
    prompts = len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1
    return prompts * (n if type(n) is int and n > 0 else 1)


def most_tokens(body: Mapping[str, Any]) -> int | None:
    """The most tokens that one choice may have, where the request says so."""
    asked = [v for name in ("max_completion_tokens", "max_tokens") if type(v := body.get(name)) is int and v >= 0]
    return min(asked) if asked else None


def wants_its_own(body: Mapping[str, Any]) -> bool:
    """Does the request ask for a sample of its own? An explicit temperature above 0 and no seed: who asks five times
    wants five answers. (What has been stored may still be reused; that is for `sampled` to say.)"""
    temperature = body.get("temperature")
    warm = isinstance(temperature, int | Decimal) and not isinstance(temperature, bool) and temperature > 0
    return warm and body.get("seed") is None


def _deterministic(body: Mapping[str, Any]) -> bool:
    # No temperature means 1.0 at OpenAI, and a seed alone is best effort: only an explicit 0 is deterministic.
    temperature = body.get("temperature")
    return isinstance(temperature, int | Decimal) and not isinstance(temperature, bool) and temperature == 0


def _hosted_tool(tools: Any) -> bool:
    # Functions and custom tools run at the client. Any other type runs at the provider, with effects and fresh data.
    if not isinstance(tools, list):
        return False
    return any(not isinstance(t, dict) or t.get("type", "function") not in ("function", "custom") for t in tools)


def _empty(api: Api, choice: Mapping[str, Any]) -> bool:
    if api == "completions":
        return not choice.get("text")
    message = choice["message"]
    return not (message.get("content") or message.get("tool_calls") or message.get("refusal"))
