"""What counts as the same request, and that nothing else does.

`meaning` is a second, independent statement of DESIGN 6: two bodies may share a key exactly when it says the same of
both. The tests compare the canonical form with it, in both directions.
"""

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cache.scope import Scope
from gateway.normalize import canonical, normalize_text, request_key
from gateway.strict_json import parse_object
from tests.gateway.values import few, json_values, some, texts

Json = dict[str, Any]


def same(a: Json, b: Json, *, api: Any = "chat", text: Any = "json") -> bool:
    return canonical(api, a, text=text) == canonical(api, b, text=text)


# The oracle

NULLABLE = [
    *("frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "top_logprobs", "n", "seed", "stop"),
    *("max_tokens", "max_completion_tokens", "temperature", "top_p", "tools", "tool_choice", "functions"),
    *("function_call", "parallel_tool_calls", "response_format", "reasoning_effort", "verbosity", "modalities"),
    *("audio", "prediction", "web_search_options", "moderation", "suffix", "echo", "best_of"),
]
LEFT_OUT = [
    *("stream", "stream_options", "user", "safety_identifier", "metadata", "store", "service_tier", "cache"),
    *("cache_control", "prompt_cache_key", "prompt_cache_retention", "prompt_cache_options"),
]
NULLABLE_IN_MESSAGE = ["content", "name", "refusal", "tool_calls", "function_call", "audio"]


def plain(value: Any) -> Any:
    """A hashable stand-in: equal exactly when two JSON values are, numbers by their value."""
    match value:
        case bool() | None | str():
            return (type(value).__name__, value)
        case int() | Decimal():
            return ("number", Fraction(value))
        case list():
            return ("list", tuple(plain(v) for v in value))
        case dict():
            return ("object", frozenset((k, plain(v)) for k, v in value.items()))
    raise AssertionError(type(value))


def without_hint(value: Any) -> Any:
    return {k: v for k, v in value.items() if k != "cache_control"} if isinstance(value, dict) else value


def message_meaning(message: Any) -> Any:
    message = without_hint(message)
    if not isinstance(message, dict):
        return message
    message = {k: v for k, v in message.items() if v is not None or k not in NULLABLE_IN_MESSAGE}
    if isinstance(content := message.get("content"), list):
        parts = [without_hint(p) for p in content]
        match parts:
            case [{"type": "text", "text": str() as text, **rest}] if not rest:
                message["content"] = text
            case _:
                message["content"] = parts
    return message


def meaning(body: Json) -> Any:
    body = {k: v for k, v in body.items() if k not in LEFT_OUT and (v is not None or k not in NULLABLE)}
    if body.get("logprobs") is False:
        del body["logprobs"]
    if plain(body.get("n")) == plain(1):
        del body["n"]
    if "max_completion_tokens" not in body and "max_tokens" in body:
        body["max_completion_tokens"] = body.pop("max_tokens")
    if isinstance(messages := body.get("messages"), list):
        body["messages"] = [message_meaning(m) for m in messages]
    if isinstance(tools := body.get("tools"), list):
        body["tools"] = [without_hint(t) for t in tools]
    return plain(body)


spellings = ["0.0", "-0.0", "1.0", "1.00", "1e0", "10e-1", "0.7", "0.70", "7E-1", "1e2", "1e-400", "1E308", "2.5e-7"]
whole = [100, 2**53, 2**53 + 1, 2**70, Decimal(2**53 + 1), Decimal("9007199254740993.0")]
numbers = st.integers(-3, 3) | st.sampled_from([*map(Decimal, spellings), *whole])
words = st.sampled_from(["", "a", " a", "a ", "A", "é", "é", "a\r\nb", "a\nb", "1", "true", "null", "text"])
atoms = st.none() | st.booleans() | numbers | words
values = json_values(atoms, max_leaves=4)
parts = st.fixed_dictionaries(
    {"type": st.sampled_from(["text", "image_url"])},
    optional={"text": words | atoms, "cache_control": values, "extra": atoms},
)
messages = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system"])},
    optional={"content": words | st.lists(parts | atoms, max_size=2) | values, "name": atoms, "refusal": atoms}
    | {"cache_control": values, "tool_calls": values, "unknown": atoms},
)
bodies: st.SearchStrategy[Json] = st.fixed_dictionaries(
    {"model": st.just("m"), "messages": st.lists(messages | atoms, max_size=2)},
    optional=dict.fromkeys([*LEFT_OUT, "n", "logprobs", "seed", "temperature", "stop", "unheard_of"], atoms)
    | {"max_tokens": numbers | st.none(), "max_completion_tokens": numbers | st.none(), "top_k": atoms}
    | {"tools": st.lists(st.dictionaries(st.sampled_from(["type", "cache_control", "x"]), atoms) | atoms, max_size=2)},
)


@pytest.mark.slow
@some
@given(bodies, bodies)
def test_two_bodies_share_a_form_exactly_when_they_mean_the_same(a: Json, b: Json) -> None:
    assert same(a, b) == (meaning(a) == meaning(b))


def changes(value: Any) -> list[Callable[[Any], Any]]:
    """Small changes of one value. Whether each one matters is for `meaning` to say."""
    out: list[Callable[[Any], Any]] = [lambda _: None, lambda v: [v], lambda _: True, lambda _: 1, lambda _: "a"]
    if isinstance(value, str):
        out += [lambda v: v + " ", lambda v: v.upper(), lambda v: [{"type": "text", "text": v}], lambda v: v + "\n"]
    if isinstance(value, list):
        out += [lambda v: v[::-1], lambda v: [*v, None], lambda v: v[1:], lambda v: v + v]
    if isinstance(value, dict):
        out += [lambda v: {**v, "x": None}, lambda v: dict(reversed(v.items())), lambda v: {**v, "cache_control": 1}]
        out += [lambda v: dict(list(v.items())[1:]), lambda v: {k + "_": w for k, w in v.items()}]
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        out += [lambda v: Decimal(v), lambda v: v + 1, lambda v: -v, lambda v: str(v), lambda v: Decimal(v).scaleb(-30)]
    return out


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(p for k, v in items for p in places(v, (*path, k)))]


@some
@given(bodies, st.data())
def test_one_small_change_anywhere_matters_exactly_when_it_means_something(body: Json, data: st.DataObject) -> None:
    changed = copy.deepcopy(body)
    path = data.draw(st.sampled_from([p for p in places(body) if p] or [("model",)]))
    *way, last = path
    holder: Any = changed
    for step in way:
        holder = holder[step]
    holder[last] = data.draw(st.sampled_from(changes(holder[last])))(holder[last])
    assert same(body, changed) == (meaning(body) == meaning(changed))


@few
@given(bodies)
def test_the_body_itself_is_left_alone(body: Json) -> None:
    before = copy.deepcopy(body)
    canonical("chat", body)
    canonical("chat", body, text="text")
    assert repr(body) == repr(before)


# How the text of the JSON is written


@few
@given(st.dictionaries(texts, json_values(), max_size=4), st.randoms(use_true_random=False))
def test_key_order_blanks_and_escapes_do_not_matter(body: Json, random: Any) -> None:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            random.shuffle(items)
            return {k: shuffled(v) for k, v in items}
        return [shuffled(v) for v in value] if isinstance(value, list) else value

    one = parse_object(json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode())
    two = parse_object(json.dumps(shuffled(body), indent=3).encode())
    assert same(one, two)


def seed(text: str) -> Json:
    return parse_object(b'{"model": "m", "messages": [{"role": "user"}], "seed": %s}' % text.encode())


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("1", "1.0"),
        ("1", "1e0"),
        ("100", "1e2"),
        ("100", "10.0e+1"),
        ("0.7", "0.70"),
        ("0.7", "7E-1"),
        ("0", "-0.0"),
        ("0", "0e5"),
        ("1e-400", "10e-401"),
        ("1E308", "10.00e307"),
        ("9007199254740993", "9007199254740993.0"),
        ("1234567890123456789012345678901", "1234567890123456789012345678901.0"),
        ("1" + "0" * 40, "1e40"),
        ("-12" + "0" * 60, "-1.2e61"),
    ],
)
def test_equal_numbers_are_the_same(a: str, b: str) -> None:
    assert same(seed(a), seed(b))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("9007199254740992", "9007199254740993"),
        ("9007199254740992.0", "9007199254740993.0"),
        ("1", "true"),
        ("0", "false"),
        ("1.0", "true"),
        ("1", '"1"'),
        ("1.0", '"1.0"'),
        ("0.1", "0.10000000000000000000000000000000000000001"),
        ("0.1", "0.1000000000000000055511151231257827021181583404541015625"),
        ("1e-400", "0"),
        ("1e-400", "1e-401"),
        ("1e-400", "-1e-400"),
        ("1e308", "1.0000000000000000000000000000001e308"),
        ("null", "0"),
        ("[]", "{}"),
        ("[1]", "1"),
        ("[[1],[2]]", "[[1,2]]"),
        ('""', "null"),
    ],
)
def test_different_values_stay_apart(a: str, b: str) -> None:
    assert not same(seed(a), seed(b))


@some
@given(st.decimals(allow_nan=False, allow_infinity=False), st.decimals(allow_nan=False, allow_infinity=False))
@example(Decimal("1E+32"), Decimal("1E+33"))
def test_decimals_share_a_form_exactly_when_they_are_equal(a: Decimal, b: Decimal) -> None:
    assume(max(abs(a.adjusted()), abs(b.adjusted())) < 1000)
    assert same({"x": a}, {"x": b}) == (a == b)
    assert same({"x": a}, {"x": Decimal(str(a) + ("0" if "." in str(a) and "E" not in str(a) else ""))})


# Text


@pytest.mark.parametrize(
    ("a", "b", "equal_as_text"),
    [
        ("e\u0301", "é", True),
        ("a\r\nb\rc", "a\nb\nc", True),
        (" \t\na\n", "a", True),
        ("ﬁ", "fi", False),  # NFKC would join them
        ("Straße", "STRASSE", False),
        ("a  b", "a b", False),
        ("\u00a0a", "a", False),
        ("a\u2028", "a", False),
        ("a\x0b", "a", False),
    ],
)
def test_text_is_compared_as_it_is_unless_the_endpoint_says_otherwise(a: str, b: str, equal_as_text: bool) -> None:
    def chat(text: Any) -> Json:
        return {"messages": [{"role": "user", "content": text}]}

    def parts_of(text: str) -> Json:
        return chat([{"type": "text", "text": text}, {"type": "image_url", "image_url": {"url": "data:,x"}}])

    for form in (chat, parts_of):
        assert not same(form(a), form(b))
        assert same(form(a), form(b), text="text") == equal_as_text
    assert same({"prompt": a}, {"prompt": b}, api="completions", text="text") == equal_as_text
    assert not same({"prompt": a}, {"prompt": b}, api="completions")


@some
@given(st.text())
def test_normalized_text_is_normal(text: str) -> None:
    once = normalize_text(text)
    assert normalize_text(once) == once


def test_only_the_text_of_messages_is_normalized() -> None:
    def body(text: str) -> Json:
        return {"model": text, "stop": text, "messages": [{"role": "user", "name": text, "content": "x"}]}

    for name in ("model", "stop"):
        assert not same({**body("a"), name: "a "}, body("a"), text="text")
    changed = body("a")
    changed["messages"][0]["name"] = "a "
    assert not same(changed, body("a"), text="text")


# Keys


ARGUMENTS: Json = {
    "scope": Scope.of("tenant", tenant="acme", user="alice", permissions=frozenset()),
    "endpoint": "default",
    "settings": b"\x01" * 32,
    "api": "chat",
    "model": "gpt-x",
    "backend": "openai",
    "revision": "remote:https://api.example/v1",
    "headers": (("openai-beta", "assistants=v2"),),
    "body": b'{"messages":[{"content":"Hello?","role":"user"}],"model":"gpt-x"}',
}
PINNED = "5fb6c820b999318a7d86be6e5e714a37a46818d58bbf02fea6ab9702150b1e94"


def test_every_argument_is_in_the_key() -> None:
    others: Json = {
        "scope": Scope.of("tenant", tenant="globex", user="alice", permissions=frozenset()),
        "endpoint": "other",
        "settings": b"\x02" * 32,
        "api": "completions",
        "model": "GPT-x",
        "backend": "fallback",
        "revision": "remote:https://api.example/v2",
        "headers": (("openai-beta", "assistants=v3"),),
        "body": ARGUMENTS["body"] + b" ",
    }
    assert others.keys() == ARGUMENTS.keys()
    keys = {request_key(**{**ARGUMENTS, name: value}) for name, value in others.items()}
    keys.add(request_key(**ARGUMENTS))
    assert len(keys) == len(others) + 1
    assert all(len(key) == 32 for key in keys)


NAMES = ("endpoint", "model", "backend", "revision")
small = st.text("ab", max_size=3)


@some
@given(st.tuples(small, small, small, small), st.tuples(small, small, small, small))
def test_names_do_not_run_into_each_other(a: tuple[str, ...], b: tuple[str, ...]) -> None:
    def key(names: tuple[str, ...]) -> bytes:
        return request_key(**{**ARGUMENTS, **dict(zip(NAMES, names, strict=True))})

    assert (key(a) == key(b)) == (a == b)


header_lists = st.lists(st.tuples(small, small), max_size=3)


@some
@given(header_lists, header_lists)
def test_headers_are_a_set_of_pairs_whatever_their_order(a: Any, b: Any) -> None:
    def key(headers: Any) -> bytes:
        return request_key(**{**ARGUMENTS, "headers": headers})

    assert (key(a) == key(b)) == (sorted(a) == sorted(b))


def test_the_key_of_a_fixed_request_is_the_same_in_every_process() -> None:
    """A changed key empties every store there is: raise KEY_VERSION and this vector together, knowingly."""
    assert request_key(**ARGUMENTS).hex() == PINNED


def test_the_canonical_form_does_not_depend_on_the_hash_seed() -> None:
    program = (
        "from gateway.normalize import canonical\n"
        "body = {w: {w: 1, 'x' + w: [w]} for w in ('model', 'b', 'a', 'ä', 'tools', '𝔸', 'ﬁ')}\n"
        "print(canonical('chat', body).hex())"
    )

    def run(seed: str) -> str:
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(p for p in sys.path if p) or "."}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    assert run("0") == run("4242") != ""
