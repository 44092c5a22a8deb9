"""The local engine's embeddings through the gateway: real vectors, kept by element."""

import math

import openai
import pytest

from tests.support.engines import local_gateway
from tests.support.gateway import ALICE
from tests.support.vectors import embed

pytestmark = [pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(300)]

TEXTS = ["How do I reset my password?", "I forgot my password.", "The moon is full tonight."]


def cosine(a: list[float], b: list[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True)) / math.sqrt(sum(x * x for x in a) * sum(x * x for x in b))


def test_vectors_of_the_local_model_are_kept_by_element() -> None:
    with local_gateway() as gw, openai.OpenAI(base_url=f"{gw.url}/v1", api_key=ALICE, max_retries=0) as client:
        alone = client.embeddings.create(model="local", input=TEXTS[0])
        answer = client.embeddings.with_raw_response.create(model="local", input=[*TEXTS[1:], TEXTS[0]])
        assert answer.headers["cache-status"] == 'exact; fwd=miss; detail="hits=1/3"'
        forgot, moon, reset = (item.embedding for item in answer.parse().data)
        assert reset == alone.data[0].embedding
        assert cosine(reset, forgot) > cosine(reset, moon) + 0.2
        usage = answer.parse().usage
        assert usage.prompt_tokens == usage.total_tokens > alone.usage.prompt_tokens > 0
        again = embed(gw, [*TEXTS[1:], TEXTS[0]], model="local")
        assert again.headers["x-refrain-cache"] == "exact"
        assert again.json()["usage"]["prompt_tokens"] == usage.prompt_tokens
        refused = embed(gw, "word " * 5000, model="local")
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "input")
