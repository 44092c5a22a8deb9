"""An hour of a company's traffic in about a minute, the same each time: for the pictures of the dashboard."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.support.gateway import ADMIN, Clock, Running
from tests.support.semantic import meaning
from tests.support.upstream import Reply, Seen, Upstream, chat_answer, chat_chunks, sse, upstream

Json = dict[str, Any]
NOW = 1_781_533_500.0  # Monday, 15 June 2026, 14:25 UTC
MINUTES = 60
WRITTEN = 1.1  # seconds in which the books are, which have the time of their writing
SPREAD = 6  # requests at the same time, most of them hits

CONFIG = """
backends:
  openai: {{kind: remote, base_url: "{url}", api_key: none}}
  gpu-rack: {{kind: remote, base_url: "{url}", api_key: none}}
models: {{gpt-5-mini: openai, gpt-5: openai, "*": gpu-rack}}
store: {{url: "memory://"}}
prices:
  gpt-5-mini: {{input: 0.25, output: 2.0, cached_input: 0.025}}
  gpt-5: {{input: 1.25, output: 10.0, cached_input: 0.125}}
  qwen3-8b: {{input: 0.06, output: 0.18}}
auth:
  keys:
    - {{key: {admin}, tenant: ops, user: dana, role: admin}}
    - {{key: rf-demo-acme, tenant: acme, user: web-shop}}
    - {{key: rf-demo-globex, tenant: globex, user: intranet}}
endpoints:
  chat_assistant: {{mode: stream, share: tenant}}
  hr_questions: {{mode: request_response, share: tenant}}
  invoice_json_extraction: {{mode: request_response, share: tenant, cache: {{semantic: off}}}}
"""

SYSTEMS = {
    "chat_assistant": "You are the assistant of an online shop. Answer in two sentences.",
    "hr_questions": "You answer questions of employees from the handbook.",
    "invoice_json_extraction": "Give the fields of the invoice as JSON.",
}
QUESTIONS = {
    "chat_assistant": [
        *("How do I reset my password?", "How can I reset my password?", "How could I reset my password?"),
        *("Where can I track my order?", "Where do I track my order?", "How long does delivery take?"),
        *("Can I return shoes after 30 days?", "Can I return shoes after 60 days?", "Do you ship to Norway?"),
        *("Do you ship to Sweden?", "Which sizes does the trail jacket come in?", "Is the trail jacket waterproof?"),
        *("How do I cancel my order?", "How can I cancel my order?", "How do I change my address?"),
        *("Do you have gift cards?", "What does express delivery cost?", "Which payment methods do you accept?"),
    ],
    "hr_questions": [
        *("How do I request parental leave?", "How can I request parental leave?", "Where do I find my payslip?"),
        *("Where can I find my payslip?", "How many days of vacation do I have in 2025?"),
        *("How many days of vacation do I have in 2026?", "Who approves travel expenses?"),
        *("Who does not approve travel expenses?", "How do I report sick leave?", "How can I report sick leave?"),
        *("May I work from abroad for two weeks?", "May I work from abroad for four weeks?"),
    ],
}
MODELS = {"chat_assistant": "gpt-5-mini", "hr_questions": "gpt-5", "invoice_json_extraction": "qwen3-8b"}
TAGS = {"chat_assistant": "shop", "hr_questions": "handbook,hr", "invoice_json_extraction": "invoices"}
KEYS = {"chat_assistant": "rf-demo-acme", "hr_questions": "rf-demo-globex", "invoice_json_extraction": "rf-demo-acme"}


def answers(seen: Seen, number: int) -> Reply:
    """As long, and as slow, as the question and the model make it; one in a while fails."""
    question = str(seen.body["messages"][-1]["content"])
    model, dice = str(seen.body["model"]), random.Random(f"{question}{number}")
    if question.startswith("Invoice 13"):
        error = {"message": "The model is overloaded.", "type": "server_error", "param": None, "code": "overloaded"}
        return Reply([json.dumps({"error": error}).encode()], status=503, headers={"retry-after": "0"})
    told = {"gpt-5": 260, "gpt-5-mini": 170}.get(model, 120)
    prompt, output = 180 + 9 * len(question), told + dice.randrange(80)
    cached = prompt // 2 // 64 * 64
    usage = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    answer = chat_answer(f"{question.rstrip('?')}: the handbook has a page on that.", model=model, usage=usage)
    wait = 0.05 + output / {"gpt-5": 700, "gpt-5-mini": 900}.get(model, 420)
    if not seen.body.get("stream"):
        return Reply([json.dumps(answer).encode()], first_pause=wait)
    pieces = [sse([c], done=False) for c in chat_chunks(answer, include_usage=True)]
    pieces[-1] += b"data: [DONE]\n\n"
    return Reply(pieces, first_pause=0.15, pause=wait / len(pieces), content_type="text/event-stream")


class Crowd:
    """Asks like people do: often the same, sometimes in other words, at lunch less."""

    def __init__(self, url: str) -> None:
        self.dice = random.Random(7)
        self.client = httpx.AsyncClient(base_url=url, timeout=60, trust_env=False)

    async def ask(self, endpoint: str, question: str, **more: Any) -> None:
        messages = [{"role": "system", "content": SYSTEMS[endpoint]}, {"role": "user", "content": question}]
        body = {"model": MODELS[endpoint], "messages": messages, **more}
        headers = {"authorization": f"Bearer {KEYS[endpoint]}", "x-refrain-tags": TAGS[endpoint]}
        await self.client.post(f"/{endpoint}/v1/chat/completions", json=body, headers=headers)

    def one(self, minute: int) -> list[Any]:
        """A request, or two that are the same at the same time."""
        kind = self.dice.random()
        if kind < 0.2:
            number = self.dice.randrange(100 + minute)
            return [self.ask("invoice_json_extraction", f"Invoice {number}: 12 chairs, 840 EUR")]
        endpoint = "chat_assistant" if kind < 0.7 else "hr_questions"
        known = QUESTIONS[endpoint]
        reach = min(len(known), 4 + minute // 3)  # what people ask grows over the hour
        question = known[min(self.dice.randrange(reach), self.dice.randrange(reach))]
        more: Json = {"stream": True} if endpoint == "chat_assistant" and self.dice.random() < 0.6 else {}
        if self.dice.random() < 0.06:
            more["temperature"] = round(self.dice.random(), 2)
        return [self.ask(endpoint, question, **more) for _ in range(2 if self.dice.random() < 0.3 else 1)]

    async def minute(self, minute: int, clock: Clock) -> None:
        begun = NOW - 60 * (MINUTES - minute)
        number = int((14 + 10 * self.dice.random()) * (0.45 if 22 < minute < 34 else 1.0))
        asks = [ask for _ in range(number) for ask in self.one(minute)]
        for start in range(0, len(asks), SPREAD):
            clock.frozen = begun + 60 * (start + 0.5) / len(asks)
            await asyncio.gather(*asks[start : start + SPREAD])


async def _hour(gw: Running) -> None:
    crowd = Crowd(gw.url)
    async with crowd.client:
        for minute in range(MINUTES):
            await crowd.minute(minute, gw.clock)
            await asyncio.sleep(WRITTEN)
    gw.clock.frozen = NOW - 1


@contextmanager
def demo() -> Iterator[tuple[Running, Upstream]]:
    """A gateway that has had its hour. It is NOW there, and stays so."""
    with upstream() as up:
        up.script = answers
        with meaning(CONFIG.format(url=up.url, admin=ADMIN), clock=Clock(frozen=NOW - 60 * MINUTES)) as gw:
            asyncio.run(_hour(gw))
            yield gw, up
