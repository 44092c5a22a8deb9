"""The request body, checked: what the engine can do, and a 400 that names the field for what it cannot.

A parameter that would change the answer and that we cannot honour is refused, never ignored. Empty values (`null`,
`tools: []`, a penalty of 0) ask for nothing and are fine, as are fields that do not touch the answer (`user`,
`metadata`, `store`, ...).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from backends.local.errors import RequestError, missing, unsupported, wrong_type, wrong_value
from backends.local.fields import Fields, flag, integer, real
from backends.local.messages import parse_messages
from backends.local.response_format import parse_response_format
from backends.local.work import Sampling

# All as at OpenAI, but for the choices: each of them is a sequence of its own in the running batch.
MAX_CHOICES = 16
MAX_STOPS = 4
MAX_STOP = 1000
MAX_BIASES = 300
MAX_TOP_LOGPROBS = 20
MAX_TEXT_LOGPROBS = 5


@dataclass(frozen=True, slots=True)
class Options:
    """What chat and legacy completions have in common. `model` None: the request names none. `max_tokens` None: the
    default of the route. `schema` is a JSON schema, as text, that the answer must obey."""

    model: str | None
    sampling: Sampling
    n: int
    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    schema: str | None
    stream: bool
    include_usage: bool


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: tuple[dict[str, str], ...]
    options: Options


@dataclass(frozen=True, slots=True)
class TextRequest:
    prompt: str
    options: Options


def parse_chat(body: object) -> ChatRequest:
    """A body of chat/completions. Raises RequestError."""
    fields = _object(body)
    _refuse(fields, NEUTRAL_CHAT)
    return ChatRequest(parse_messages(fields.get("messages")), _options(fields, _chat_logprobs(fields)))


def parse_text(body: object) -> TextRequest:
    """A body of (legacy) completions: one prompt, as a string or a list with one string. Raises RequestError."""
    fields = _object(body)
    _refuse(fields, NEUTRAL_TEXT)
    prompt = fields.get("prompt")
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, list) and len(prompt) == 1:
        prompt = prompt[0]
    if not isinstance(prompt, str):
        raise unsupported("prompt", "'prompt' must be a string or a list with one string.")
    if not prompt:
        raise wrong_value("prompt", "a text that is not empty")
    return TextRequest(prompt, _options(fields, _text_logprobs(fields)))


def _object(body: object) -> Fields:
    if not isinstance(body, dict):
        raise RequestError("The body must be a JSON object.", code="invalid_type")
    return body


Neutral = Callable[[Any], bool]
"""Whether a value asks for nothing. `None` never comes here: it always asks for nothing."""


def _one_of(*values: object) -> Neutral:
    return lambda value: any(value == neutral and type(value) is type(neutral) for neutral in values)


def _number(neutral: float) -> Neutral:
    return lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == neutral


# Beside OpenAI's own those of vLLM, SGLang and llama.cpp, which clients of a local model send.
NEUTRAL_BOTH: dict[str, Neutral] = {
    "repetition_penalty": _number(1),
    "length_penalty": _number(1),
    "typical_p": _number(1),
    "min_tokens": _number(0),
    "best_of": _number(1),
    "use_beam_search": _one_of(False),
    "echo": _one_of(False),
    "include_stop_str_in_output": _one_of(False),
    "skip_special_tokens": _one_of(True),
    **dict.fromkeys(("stop_token_ids", "bad_words", "allowed_token_ids", "logits_processors"), _one_of([])),
    **dict.fromkeys(
        (
            *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "grammar"),
            *("json_schema", "regex", "ebnf", "prompt_logprobs", "truncate_prompt_tokens"),
        ),
        _one_of(),
    ),
}
NEUTRAL_CHAT: dict[str, Neutral] = NEUTRAL_BOTH | {
    "chat_template": _one_of(),
    "chat_template_kwargs": _one_of({}),
    "documents": _one_of([]),
    "add_generation_prompt": _one_of(True),
    "continue_final_message": _one_of(False),
    "tools": _one_of([]),
    "tool_choice": _one_of("none", "auto"),
    "functions": _one_of([]),
    "function_call": _one_of("none", "auto"),
    "modalities": _one_of(["text"]),
    "audio": _one_of({}),
    "prediction": _one_of({}),
    "web_search_options": _one_of(),
}
NEUTRAL_TEXT: dict[str, Neutral] = NEUTRAL_BOTH | {
    "suffix": _one_of(""),
    "top_logprobs": _number(0),  # here `logprobs` says how many
}


def _refuse(fields: Fields, neutral: Mapping[str, Neutral]) -> None:
    for name, asks_nothing in neutral.items():
        value = fields.get(name)
        if value is not None and not asks_nothing(value):
            raise unsupported(name)


def _options(fields: Fields, logprobs: int | None) -> Options:
    model = fields.get("model")
    if model is not None and not isinstance(model, str):
        raise wrong_type("model", "a string")
    stream_options = fields.get("stream_options")
    if stream_options is not None and not isinstance(stream_options, dict):
        raise wrong_type("stream_options", "an object")
    stream, ignore_eos = flag(fields, "stream"), flag(fields, "ignore_eos")
    schema = parse_response_format(fields.get("response_format"))
    if ignore_eos and schema is not None:
        raise wrong_value("ignore_eos", "left out beside 'response_format': a complete answer ends")
    return Options(
        model=model,
        sampling=Sampling(
            temperature=real(fields, "temperature", 0, 2, default=1.0),
            top_p=real(fields, "top_p", 0, 1, default=1.0),
            top_k=max(0, integer(fields, "top_k", -1, 2**31) or 0),  # -1 means "off" at vLLM
            min_p=real(fields, "min_p", 0, 1, default=0.0),
            seed=integer(fields, "seed", -(2**63), 2**63 - 1),
            presence_penalty=real(fields, "presence_penalty", -2, 2, default=0.0),
            frequency_penalty=real(fields, "frequency_penalty", -2, 2, default=0.0),
            logit_bias=_logit_bias(fields.get("logit_bias")),
            logprobs=logprobs,
        ),
        n=integer(fields, "n", 1, MAX_CHOICES) or 1,
        max_tokens=_max_tokens(fields),
        stops=_stops(fields.get("stop")),
        ignore_eos=ignore_eos,
        schema=schema,
        stream=stream,
        include_usage=stream and flag(stream_options or {}, "include_usage", "stream_options.include_usage"),
    )


def _chat_logprobs(fields: Fields) -> int | None:
    top = integer(fields, "top_logprobs", 0, MAX_TOP_LOGPROBS)
    if flag(fields, "logprobs"):
        return top or 0
    if top:
        raise wrong_value("top_logprobs", "left out where 'logprobs' is not true")
    return None


def _text_logprobs(fields: Fields) -> int | None:
    if fields.get("logprobs") is False:  # the neutral value of the other route
        return None
    return integer(fields, "logprobs", 0, MAX_TEXT_LOGPROBS)


def _logit_bias(value: object) -> tuple[tuple[int, float], ...]:
    """Whether the model has these tokens shows later."""
    if value is None:
        return ()
    if not isinstance(value, dict):
        raise wrong_type("logit_bias", "an object from token ids to numbers")
    if len(value) > MAX_BIASES:
        raise wrong_value("logit_bias", f"an object with at most {MAX_BIASES} entries")
    biases: dict[int, float] = {}
    for token, bias in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise wrong_value("logit_bias", "an object whose keys are token ids")
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise wrong_type("logit_bias", "an object from token ids to numbers")
        if not -100 <= bias <= 100:
            raise wrong_value("logit_bias", "an object whose values are between -100 and 100")
        if int(token) in biases:
            raise wrong_value("logit_bias", "an object that names no token twice")
        biases[int(token)] = float(bias)
    return tuple(biases.items())


def _max_tokens(fields: Fields) -> int | None:
    old = integer(fields, "max_tokens", 1, 2**31)
    new = integer(fields, "max_completion_tokens", 1, 2**31)
    if old is not None and new is not None and old != new:
        raise wrong_value("max_tokens", "left out where 'max_completion_tokens' is given")
    return old if new is None else new


def _stops(value: object) -> tuple[str, ...]:
    if value is None:
        return ()
    stops = [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or not all(isinstance(stop, str) for stop in stops):
        raise wrong_type("stop", "a string or a list of strings")
    if len(stops) > MAX_STOPS or not all(0 < len(stop) <= MAX_STOP for stop in stops):
        raise wrong_value("stop", f"at most {MAX_STOPS} strings of 1 to {MAX_STOP} characters")
    return tuple(stops)
