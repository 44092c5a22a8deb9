"""How much the engine takes on, and how long an answer may be."""

from backends.local.errors import RequestError

MAX_RUNNING = 16
"""Choices that are written at once."""
MAX_QUEUE = 64
"""Requests that may wait behind them."""
KV_MEMORY = 2**30
"""Bytes for keys and values, of running requests and the prefix cache together."""
STALLED = 120.0
"""Seconds after which a step of the model that goes on is called a stall. One takes well under a second for the
bundled model, and tens of seconds for the first piece of a prompt with one that is too large for its machine."""

# Without a limit in the request. A small model that lost the thread goes on for ever: 512 tokens are 20 s of one core.
# For legacy completions it is OpenAI's documented default.
CHAT_DEFAULT = 512
TEXT_DEFAULT = 16


def max_tokens(*, prompt: int, asked: int | None, context: int, memory: int, default: int, param: str) -> int:
    """The tokens the answer may have, at least 1, so that prompt and answer fit both in the model's `context` and in
    the `memory` for keys and values, counted in tokens.

    `param` names the field the prompt came from. Raises RequestError (context_length_exceeded) with the numbers where
    the prompt, or the prompt and the tokens asked for, do not fit."""
    room = min(context, memory)
    if prompt >= room:
        raise _too_long(
            f"However, '{param}' has {prompt} tokens and leaves no room for an answer.", context, memory, param
        )
    if asked is not None and prompt + asked > room:
        numbers = f"{prompt + asked} tokens ({prompt} in '{param}', {asked} in the completion)"
        raise _too_long(f"However, you requested {numbers}.", context, memory, param)
    return min(default, room - prompt) if asked is None else asked


def check_length(characters: int, *, longest: int, context: int, memory: int, param: str) -> None:
    """Raises RequestError (context_length_exceeded) for a text that cannot fit, before it is tokenized: megabytes take
    seconds. `longest`: characters of the model's longest token."""
    least = characters // longest
    if least >= min(context, memory):
        raise _too_long(f"However, '{param}' has at least {least} tokens.", context, memory, param)


def _too_long(problem: str, context: int, memory: int, param: str) -> RequestError:
    limit = f"This model's maximum context length is {min(context, memory)} tokens"
    if memory < context:
        limit += f" here (its own is {context}, but the engine's memory for keys and values holds no more)"
    return RequestError(
        f"{limit}. {problem} Shorten '{param}' or the completion.", param=param, code="context_length_exceeded"
    )
