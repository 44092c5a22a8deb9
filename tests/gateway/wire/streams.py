"""Streams of an answer as servers and networks make them, and what a plain client makes of one."""

import json
from itertools import pairwise
from random import Random
from typing import Any

from gateway.normalize import Api
from gateway.wire.assemble import Assembler
from gateway.wire.sse import EventParser
from tests.gateway.wire.answers import Json

PADDING = {"obfuscation": "zX9"}
FIRST_OF_AZURE: Json = {
    "id": "",
    "object": "",
    "created": 0,
    "model": "",
    "choices": [],
    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {}}],
}


class Chance(Random):
    """How to cut and mix, by a seed that a failed test tells."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.begun = seed

    def __repr__(self) -> str:
        return f"Chance({self.begun})"


def chunk(delta: Json | None = None, finish: str | None = None, *, index: int = 0, **more: Any) -> Json:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {**head, "choices": [{"index": index, "delta": delta or {}, "finish_reason": finish, **more}]}


def assembled(chunks: list[Json], api: Api = "chat") -> Json:
    assembler = Assembler(api)
    for each in chunks:
        assembler.add(each)
    return assembler.result()


def events(raw: bytes) -> list[Json]:
    """The chunks of a whole SSE body, which must end with [DONE]."""
    parser = EventParser()
    datas = parser.feed(raw)
    assert parser.finish() == []
    assert raw.endswith(b"\n\ndata: [DONE]\n\n")
    assert datas.count(b"[DONE]") == 1
    return [json.loads(data) for data in datas[:-1]]


def cuts(chance: Chance, whole: Any, most: int = 3) -> list[Any]:
    """A string or list in pieces, empty ones among them."""
    at = [chance.randint(0, len(whole)) for _ in range(chance.randint(0, most))]
    return [whole[a:b] for a, b in pairwise([0, *sorted(at), len(whole)])]


def shuffled(chance: Chance, queues: list[list[Any]]) -> list[Any]:
    """All queues in one, in any order that keeps each queue's own."""
    order = [number for number, queue in enumerate(queues) for _ in queue]
    rest = [iter(queue) for queue in queues]
    chance.shuffle(order)
    return [next(rest[number]) for number in order]


def call_pieces(chance: Chance, index: int, call: Json) -> list[Json]:
    first = {**call, "index": index, "function": {"name": call["function"]["name"], "arguments": ""}}
    return [
        {"tool_calls": [first]},
        *(
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}
            for piece in cuts(chance, call["function"]["arguments"])
        ),
    ]


def message_deltas(chance: Chance, message: Json) -> list[Json]:
    queues: list[list[Json]] = []
    for name, value in message.items():
        if name == "tool_calls":
            queues.append(shuffled(chance, [call_pieces(chance, i, call) for i, call in enumerate(value)]))
        elif name == "function_call":
            pieces = [{"arguments": piece} for piece in cuts(chance, value["arguments"])]
            queues.append([{name: {**value, "arguments": ""}}, *({name: piece} for piece in pieces)])
        elif name in ("content", "refusal", "reasoning_content") and value is not None:
            queues.append([{name: piece} for piece in cuts(chance, value)])
        elif name != "role":
            queues.append([{name: value}])
    return [{"role": "assistant", **chance.choice([{}, {"refusal": None}])}, *shuffled(chance, queues)]


def spread_logprobs(chance: Chance, pieces: list[Json], logprobs: Json) -> None:
    """Over the pieces of a choice, each list in its order."""
    pieces[0]["logprobs"] = dict.fromkeys(logprobs)
    for kind, whole in logprobs.items():
        parts = cuts(chance, whole) if whole is not None else []
        places = sorted(chance.randrange(len(pieces)) for _ in parts)
        for place, part in zip(places, parts, strict=True):
            found = {**dict.fromkeys(logprobs), **(pieces[place]["logprobs"] or {})}
            pieces[place]["logprobs"] = {**found, kind: [*(found[kind] or []), *part]}


def choice_pieces(chance: Chance, choice: Json) -> list[Json]:
    index = choice["index"]
    if "text" in choice:
        bodies: list[Json] = [{"text": piece} for piece in cuts(chance, choice["text"])]
        end: Json = {"text": ""}
    else:
        bodies = [{"delta": delta} for delta in message_deltas(chance, choice["message"])]
        end = {"delta": {}}
    pieces = [{"index": index, **b, "logprobs": None, "finish_reason": None} for b in [*bodies, end]]
    pieces[-1]["finish_reason"] = choice["finish_reason"]
    if choice["logprobs"] is not None:
        spread_logprobs(chance, pieces, choice["logprobs"])
    rest = {k: v for k, v in choice.items() if k not in ("message", *pieces[0])}
    pieces[chance.randrange(len(pieces))].update(rest)
    return pieces


def stream(answer: Json, chance: Chance) -> list[Json]:
    """Chunks of this answer: any pieces, any order, any number of choices in one chunk, and the usage, if there is
    one, in a chunk of its own, in the last one, or in all."""
    known = ("id", "object", "created", "model", "system_fingerprint", "service_tier")
    kind = answer["object"] + (".chunk" if answer["object"] == "chat.completion" else "")
    head = {k: answer[k] for k in known if k in answer} | {"object": kind}
    chunks: list[Json] = []
    for piece in shuffled(chance, [choice_pieces(chance, choice) for choice in answer["choices"]]):
        if chunks and piece["index"] not in [c["index"] for c in chunks[-1]["choices"]] and chance.random() < 0.5:
            chunks[-1]["choices"].append(piece)
        else:
            chunks.append({**head, "choices": [piece]})
    if "x_top" in answer:
        chunks[chance.randrange(len(chunks))]["x_top"] = answer["x_top"]
    if (usage := answer.get("usage")) is not None:
        match chance.choice(["own chunk", "last chunk", "every chunk"]):
            case "own chunk":
                chunks = [{**chunk, "usage": None} for chunk in chunks]
                chunks.append({**head, "choices": [], "usage": usage})
            case "last chunk":
                chunks[-1]["usage"] = usage
            case _:
                chunks = [{**chunk, "usage": {**usage, "completion_tokens": i}} for i, chunk in enumerate(chunks)]
                chunks[-1]["usage"] = usage
    return [chunk | chance.choice([{}, PADDING]) for chunk in chunks]


def on_the_wire(chunks: list[Json], chance: Chance) -> list[bytes]:
    """The chunks as bytes: any line ends, comments and other fields between, in pieces as a network cuts them."""
    end = chance.choice(["\n", "\r\n", "\r"])
    others = ["", "", ": keep-alive" + end, ":" + end * 2, "event: x" + end, "id: 1" + end]
    raw = chance.choice(["", "\ufeff"])
    for chunk in chunks:
        lines = json.dumps(chunk, ensure_ascii=chance.random() < 0.5, indent=chance.choice([None, None, 1]))
        raw += chance.choice(others) + "".join(f"data: {line}{end}" for line in lines.split("\n")) + end
    return cuts(chance, (raw + chance.choice(others) + "data:[DONE]" + end * 2).encode(), most=9)


def read(chunks: list[Json]) -> Json:
    """What a plain client makes of a stream, written without a look at how we do it. What is null is left out."""
    whole: Json = {"choices": {}}
    for chunk in chunks:
        whole |= {k: v for k, v in chunk.items() if k not in ("choices", "object", "obfuscation") and v is not None}
        for piece in chunk["choices"]:
            choice = whole["choices"].setdefault(piece["index"], {"calls": {}, "logprobs": {}})
            for name, value in piece.items():
                if name == "logprobs":
                    for kind, found in (value or {}).items():
                        choice[name].setdefault(kind, []).extend(found or [])
                elif name == "text":
                    choice[name] = choice.get(name, "") + value
                elif name == "delta":
                    read_delta(choice, value)
                elif value is not None:
                    choice[name] = value
    return whole


def read_delta(choice: Json, delta: Json) -> None:
    for name, value in delta.items():
        if name == "tool_calls":
            for part in value:
                call = choice["calls"].setdefault(part["index"], {"arguments": ""})
                call |= {k: part[k] for k in ("id", "type") if k in part}
                call |= {**part["function"], "arguments": call["arguments"] + part["function"]["arguments"]}
        elif name == "function_call":
            had = choice.setdefault(name, {"arguments": ""})
            choice[name] = {**had, **value, "arguments": had["arguments"] + value["arguments"]}
        elif name in ("content", "refusal", "reasoning_content") and value is not None:
            choice[name] = choice.get(name, "") + value
        elif value is not None:
            choice[name] = value
