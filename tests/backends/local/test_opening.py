"""From a request to its answer's text, with real tokenizers and without a model: the scores are made up."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from backends.local.choice import Choice
from backends.local.constrain import ConstraintFailed
from backends.local.convert import converted
from backends.local.models import find
from backends.local.opening import Opener
from backends.local.sampler import Drawn, Logprobs, draw
from backends.local.tokenizer import Tokenizer
from backends.local.work import Sampling, TokenLogprob, Work

END = 0
ALPHABET = 99


@pytest.fixture(scope="module")
def tiny(tiny_gguf: Path) -> Tokenizer:
    return Tokenizer(AutoTokenizer.from_pretrained(str(tiny_gguf.parent), gguf_file=tiny_gguf.name))


@pytest.fixture(scope="module")
def opener(tiny: Tokenizer) -> Opener:
    return Opener(tiny, frozenset({END}), ALPHABET)


@pytest.fixture(scope="module")
def real() -> Tokenizer:
    source = find("SmolLM2-135M-Instruct")
    return Tokenizer(AutoTokenizer.from_pretrained(str(converted(Path(source.location), source.name, print))))


@pytest.fixture(scope="module")
def real_opener(real: Tokenizer) -> Opener:
    return Opener(real, frozenset({0, 2}), 49_152)


def work(**fields: Any) -> Work:
    asked: dict[str, Any] = {
        "prompt": (5,),
        "sampling": Sampling(temperature=0, logprobs=0),
        "n": 1,
        "max_tokens": 300,
        "stops": (),
    }
    return Work(**asked | fields)


def write(choice: Choice, drawn: Iterable[Drawn]) -> dict[str, Any]:
    pieces: list[str] = []
    told: list[TokenLogprob] = []
    for token in drawn:
        text, logprobs = choice.push(token)
        pieces.append(text)
        told += logprobs
        if choice.finish_reason is not None:
            break
    return {
        "pieces": pieces,
        "text": "".join(pieces),
        "told": b"".join(logprob.chosen.data for logprob in told),
        "reason": choice.finish_reason,
        "tokens": choice.tokens,
    }


def answer(opener: Opener, asked: Work, wishes: Sequence[int], size: int = ALPHABET) -> dict[str, Any]:
    """What is written where the model likes this token best in each step."""
    sampler, choice = opener(asked, 0)

    def tokens() -> Iterator[Drawn]:
        for wish in wishes:
            scores = torch.zeros(1, size)
            scores[0, wish] = 5
            (drawn,) = draw(scores, [sampler])
            assert isinstance(drawn, Drawn), drawn
            yield drawn

    return write(choice, tokens())


def typed(opener: Opener, asked: Work, tokens: Sequence[int]) -> dict[str, Any]:
    """What is written where these tokens are drawn."""
    _, choice = opener(asked, 0)
    return write(choice, (Drawn(token, Logprobs(-1.0, ())) for token in tokens))


def test_a_text(tiny: Tokenizer, opener: Opener) -> None:
    found = answer(opener, work(), [*tiny.encode_text("a cab ab"), END])
    assert (found["text"], found["told"], found["reason"]) == ("a cab ab", b"a cab ab", "stop")


def test_a_stop_string_across_the_borders_of_tokens(tiny: Tokenizer, opener: Opener) -> None:
    found = answer(opener, work(stops=("b a",)), [*tiny.encode_text("zz ab ab"), END])
    assert (found["text"], found["reason"]) == ("zz a", "stop")


def test_the_end_token_may_be_ignored(tiny: Tokenizer, opener: Opener) -> None:
    asked = work(ignore_eos=True, max_tokens=4)
    found = answer(opener, asked, [tiny.encode_text("a")[0], END, tiny.encode_text("c")[0], END])
    assert (found["text"], found["told"], found["reason"]) == ("ac", b"a<|end|>c<|end|>", "length")


def test_a_schema_wins(opener: Opener) -> None:
    asked = work(schema='{"type":"integer","minimum":100,"maximum":999}')
    found = answer(opener, asked, [END] * 9)
    assert (len(found["text"]), found["reason"], found["tokens"]) == (3, "stop", 3)
    assert 100 <= json.loads(found["text"]) <= 999
    found = answer(opener, work(schema='{"type":"integer"}'), [18, 19, END])
    assert (found["text"], found["told"], found["reason"], found["tokens"]) == ("12", b"12", "stop", 3)


def test_a_schema_and_the_limit(opener: Opener) -> None:
    found = answer(opener, work(schema='{"const":"abc"}', max_tokens=2), [END] * 9)
    assert (found["text"], found["reason"]) == ('"ab', "length")


def test_choices_with_one_seed_differ(opener: Opener) -> None:
    asked = work(sampling=Sampling(seed=3), n=2)
    drawn = []
    for index in (0, 1, 0):
        sampler, choice = opener(asked, index)
        assert choice.index == index
        drawn.append([draw(torch.zeros(1, ALPHABET), [sampler])[0] for _ in range(20)])
    assert drawn[0] == drawn[2] != drawn[1]


TEXTS = [
    "Hello, big world!\n\n  def f(x):\n\treturn x  # ok",
    "Ein Käse für 3 €, naïve façade — “quoted”",
    "日本語のテキストと漢字。中文也可以，한국어도",
    "🎉🎊 family 👨‍👩‍👧‍👦 flag 🇩🇪 skin 👍🏽 rare 𓀀𝔘",
    "עברית العربية हिन्दी ไทย",
]


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_characters_over_several_tokens_are_never_cut(real: Tokenizer, real_opener: Opener, text: str) -> None:
    ids = real.encode_text(text)
    found = typed(real_opener, work(), [*ids, 2])
    assert (found["text"], found["told"], found["reason"]) == (text, text.encode(), "stop")
    assert not any("\ufffd" in piece for piece in found["pieces"])
    for most in range(1, len(ids)):
        cut = typed(real_opener, work(max_tokens=most), ids)
        assert text.startswith(cut["text"])
        assert cut["told"] == b"".join(real_opener._grammars.spell(token) for token in ids[:most])


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_any_stop_string_cuts_where_it_begins(real: Tokenizer, real_opener: Opener, text: str) -> None:
    ids = real.encode_text(text)
    for start in range(0, len(text), 3):
        stop = text[start : start + 3]
        found = typed(real_opener, work(stops=(stop,)), [*ids, 2])
        assert (found["text"], found["reason"]) == (text[: text.find(stop)], "stop")
        assert found["told"].startswith(found["text"].encode())


@pytest.mark.model
def test_strings_of_a_schema_with_the_real_tokenizer(real: Tokenizer, real_opener: Opener) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "tags": {"type": "array", "items": {"enum": ["🎉", "日本"]}}},
        "required": ["name", "tags"],
        "additionalProperties": False,
    }
    wanted = '{"name": "Käse 🎊 漢字", "tags": ["🎉", "日本"]}'
    found = answer(real_opener, work(schema=json.dumps(schema)), real.encode_text(wanted), 49_152)
    assert (found["text"], found["told"], found["reason"]) == (wanted, wanted.encode(), "stop")
    real_opener.check(json.dumps(schema))


@pytest.mark.model
def test_a_limit_within_an_answer_fails_that_answer_only(real_opener: Opener) -> None:
    heavy = {
        "anyOf": [{"type": "string", "pattern": f".*[{letter}].{{40}}[{letter}].{{40}}"} for letter in "abcdefghij"]
    }
    asked = work(schema=json.dumps(heavy), sampling=Sampling(seed=1))
    samplers = [real_opener(asked, 0)[0], real_opener(work(), 0)[0]]
    for _ in range(100):
        first, second = draw(torch.zeros(2, 49_152), samplers)
        assert isinstance(second, Drawn)
        if isinstance(first, Exception):
            break
    assert isinstance(first, ConstraintFailed)
    # What it shares with later answers is made anew.
    assert isinstance(draw(torch.zeros(1, 49_152), [real_opener(asked, 0)[0]])[0], Drawn)
