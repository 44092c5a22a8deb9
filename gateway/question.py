"""May the answer to another question serve this request? What would have to be equal, and what is asked?

Only the last user turn may differ: everything else that makes the key (scope, endpoint, model, parameters, system
prompt, earlier turns, the backend and its revision) is the context. What cannot be judged by the words of one short
text is left alone, each for its reason.
"""

import re
from typing import Any

from cache.framing import digest
from cache.semantic.tier import Query
from gateway.ask import Ask
from gateway.volatile import about_now

LETTERS_PER_WORD = 16
"""Longer "words" are no words: a text of so many characters for each that it may have is too long as well."""
_NO_BLANKS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
"""Scripts that put no blanks between words: two characters are about a word."""


def read_question(ask: Ask) -> Query | str:
    """The question, or why there is none: a short code for the decision."""
    policy, body = ask.endpoint.config.cache.semantic, ask.body
    if policy is None or ask.endpoint.config.cache.exact is None:
        return "tier_off"
    if "semantic" not in ask.directives.tiers:
        return "tier_not_asked"
    if ask.directives.no_cache:
        return "no_cache"
    if ask.api != "chat":
        return "not_chat"
    if body.get("tools") or body.get("functions"):
        return "tools"
    if body.get("n") not in (None, 1):
        return "several_choices"
    if body.get("logprobs") or body.get("top_logprobs"):
        return "logprobs"
    if (reason := _unfit(body["messages"])) is not None:
        return reason
    text = _text(body["messages"][-1])
    if not text.strip():
        return "empty"
    if too_long(text, policy.max_words):
        return "too_long"
    if about_now(ask.api, body):
        return "about_now"
    return Query(ask.key, ask.scope.digest(), _context(ask), text)


def too_long(text: str, max_words: int) -> bool:
    """Is it more than can be compared?"""
    return len(text) > LETTERS_PER_WORD * max_words or _words(text) > max_words


def _unfit(messages: list[dict[str, Any]]) -> str | None:
    """Why these messages are not for a comparison of texts, or None."""
    for message in messages:
        if message.get("role") in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
            return "tool_results"
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        if not all(isinstance(p, dict) and p.get("type") == "text" and isinstance(p.get("text"), str) for p in parts):
            return "not_text"
    return None if messages[-1].get("role") == "user" else "not_a_user_turn"


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content)


def _words(text: str) -> float:
    others, characters = _NO_BLANKS.subn(" ", text)
    return len(others.split()) + characters / 2


def _context(ask: Ask) -> bytes:
    """32 bytes: the key of the same request with nothing asked."""
    *before, last = ask.body["messages"]
    content = last["content"]
    nothing = "" if isinstance(content, str) else [{**part, "text": ""} for part in content]
    body = {**ask.body, "messages": [*before, {**last, "content": nothing}]}
    return digest("refrain.context.1", [ask.key_of(body)])
