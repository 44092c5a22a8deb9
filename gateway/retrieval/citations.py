"""Citations: the documents that an answer was made from, as `annotations` of its message.

OpenAI's chat API has one kind, `url_citation`; SDKs know its fields and no others. Each cites one version of a document
for the whole text of the answer, since no model says which sentence is from where. A backend that cites by itself is
left alone.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from gateway.ask import Ask
from gateway.upstream import Event, Json


def citations_of(ask: Ask) -> "Citations | None":
    """None where there is nothing to cite, or no place for it: legacy completions have none."""
    return Citations(ask.grounds.titles()) if ask.grounds is not None and ask.api == "chat" else None


class Citations:
    """Of one answer. `documents` are titles by name (a label with a version, or a URL)."""

    def __init__(self, documents: Mapping[str, str]) -> None:
        self._documents = documents
        self._lengths: Counter[int] = Counter()  # of what each choice has said so far, in characters
        self._cited: set[int] = set()

    def into_answer(self, answer: Json) -> Json:
        """The answer with its citations."""
        choices = answer.get("choices")
        if not self._documents or not isinstance(choices, list):
            return answer
        return {**answer, "choices": [self._choice(choice) for choice in choices]}

    def into_events(self, events: Sequence[Event]) -> list[Event]:
        """The events of a stream, in their order: the citations are in the last chunk of each choice."""
        return [self._event(data, chunk) for data, chunk in events] if self._documents else list(events)

    def _choice(self, choice: Any) -> Any:
        message = choice.get("message") if isinstance(choice, dict) else None
        if not isinstance(message, dict) or message.get("annotations"):
            return choice
        content = message.get("content")
        made = self._annotations(len(content) if isinstance(content, str) else 0)
        return {**choice, "message": {**message, "annotations": made}}

    def _event(self, data: bytes, chunk: Json | None) -> Event:
        choices = None if chunk is None else chunk.get("choices")
        if chunk is None or not isinstance(choices, list):
            return data, chunk
        ends = [self._take(choice) for choice in choices]
        if not any(ends):
            return data, chunk
        changed = [self._last(choice) if end else choice for choice, end in zip(choices, ends, strict=True)]
        chunk = {**chunk, "choices": changed}
        return msgspec.json.encode(chunk), chunk

    def _take(self, choice: Any) -> bool:
        """Note what a choice says; is it the end of it, and without citations?"""
        if not isinstance(choice, dict) or type(choice.get("index")) is not int:
            return False
        index, delta = choice["index"], choice.get("delta")
        if isinstance(delta, dict):
            if isinstance(content := delta.get("content"), str):
                self._lengths[index] += len(content)
            if delta.get("annotations"):
                self._cited.add(index)
        if choice.get("finish_reason") is None or index in self._cited:
            return False
        self._cited.add(index)
        return True

    def _last(self, choice: Json) -> Json:
        delta = choice.get("delta")
        made = self._annotations(self._lengths[choice["index"]])
        return {**choice, "delta": {**(delta if isinstance(delta, dict) else {}), "annotations": made}}

    def _annotations(self, length: int) -> list[Json]:
        place = {"start_index": 0, "end_index": length}
        return [
            {"type": "url_citation", "url_citation": {**place, "title": title, "url": name}}
            for name, title in self._documents.items()
        ]
