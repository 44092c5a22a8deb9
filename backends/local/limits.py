"""How long an answer may be."""

from backends.local.errors import RequestError

# Without a limit in the request. A small model that lost the thread goes on for ever: 512 tokens are 20 s of one core.
# For legacy completions it is OpenAI's documented default.
CHAT_DEFAULT = 512
TEXT_DEFAULT = 16


def max_tokens(*, prompt: int, asked: int | None, context: int, default: int, param: str) -> int:
    """The tokens the answer may have, at least 1, so that prompt and answer fit in the context.

    `param` names the field the prompt came from. Raises RequestError (context_length_exceeded) with the numbers where
    the prompt, or the prompt and the tokens asked for, do not fit."""
    if prompt >= context:
        raise _overflow(f"However, '{param}' has {prompt} tokens and leaves no room for an answer.", context, param)
    if asked is None:
        return min(default, context - prompt)
    if prompt + asked > context:
        numbers = f"{prompt + asked} tokens ({prompt} in '{param}', {asked} in the completion)"
        raise _overflow(f"However, you requested {numbers}.", context, param)
    return asked


def _overflow(text: str, context: int, param: str) -> RequestError:
    return RequestError(
        f"This model's maximum context length is {context} tokens. {text} Shorten '{param}' or the completion.",
        param=param,
        code="context_length_exceeded",
    )
