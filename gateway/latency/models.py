"""How long the backends' models take, learnt from the calls that they have answered.

Per backend and model: `ms = overhead + 1000 * prompt tokens / prefill_tps + 1000 * answer tokens / decode_tps`, fitted
(`gateway.latency.fit`) to its latest calls, of which older ones count less and less, so that it follows a backend that
has changed. Tokens that a backend had of a prompt are not read again, so they take no time here.

Its own error is part of it: of every call, before it is learnt, it is said what it should have taken.

Learning a call is a few microseconds. A fit is up to a millisecond, so in the long run one is made for every ten
calls. In memory: 3 KB for each of at most MAX_MODELS models.
"""

from collections import OrderedDict, deque
from math import isfinite
from statistics import median
from typing import Any

import numpy as np

from gateway.latency.fit import Speed, fit

MAX_MODELS = 200
"""Models that are known; of more, the one that has been called longest ago is forgotten."""
CALLS = 64
"""Latest calls of one model that are kept."""
HALF_LIFE = 16
"""Calls after which one counts half: what a shared machine can do changes from minute to minute."""
REFIT = 0.15
"""A fit is made anew when so many of the calls that are kept are new."""
ERRORS = 50
"""Latest predictions whose errors are kept."""
MAX_TOKENS = 10_000_000.0
"""Of one call: what a backend reports beyond that is nonsense."""
_WEIGHTS = 0.5 ** (np.arange(CALLS)[::-1] / HALF_LIFE)
_PROMPT, _OUTPUT, _FIRST, _MS, _SIZE = range(5)


class ModelLatency:
    """One model of one backend, which has been called once at least."""

    def __init__(self) -> None:
        self._calls = np.empty((5, CALLS))
        self._errors: deque[float] = deque(maxlen=ERRORS)
        self._learnt = 0
        self._unfitted = 0
        self._speed = Speed(0.0, 0.0, 0.0)
        self._tokens_per_byte = 0.0
        self._usual_output = 0.0

    def learn(self, prompt: float, output: float, first: float, ms: float, size: float) -> None:
        """`prompt` are the tokens that had to be read; `first` is NaN and `size` 0 where they are not known."""
        if self._learnt:
            self._errors.append(abs(self._up_to_date().ms(prompt, output) - ms) / max(ms, 1e-3))
        self._calls[:, self._learnt % CALLS] = prompt, output, first, ms, size
        self._learnt += 1
        self._unfitted += 1

    def predict(self, prompt: float, output: float) -> float:
        """Milliseconds of a call with so many tokens to read and to write."""
        return self._up_to_date().ms(prompt, output)

    def expect(self, size: int, most: float | None) -> float:
        """Milliseconds of a call of which the size of the body is known, in bytes, and perhaps how many tokens the
        answer may have at most: as many for each byte as usual, and an answer as long as usual."""
        speed = self._up_to_date()
        output = self._usual_output if most is None else min(self._usual_output, most)
        return speed.ms(self._tokens_per_byte * size, output)

    @property
    def decode_tps(self) -> float | None:
        return _per_second(self._up_to_date().decode)

    def as_dict(self) -> dict[str, Any]:
        """Speeds are null where a token takes no time that could be measured."""
        speed = self._up_to_date()
        return {
            "overhead_ms": round(speed.overhead, 2),
            "prefill_tps": _per_second(speed.prefill),
            "decode_tps": _per_second(speed.decode),
            "samples": self._learnt,
            "error": round(median(self._errors), 4) if self._errors else None,
        }

    def _up_to_date(self) -> Speed:
        kept = min(self._learnt, CALLS)
        if self._unfitted > REFIT * kept:
            self._unfitted = 0
            calls = np.roll(self._calls, -(self._learnt % CALLS), axis=1)[:, CALLS - kept :]
            self._speed = fit(calls[_PROMPT], calls[_OUTPUT], calls[_FIRST], calls[_MS], _WEIGHTS[CALLS - kept :])
            sized = calls[:, calls[_SIZE] > 0][:, -ERRORS:]
            if sized.size:
                self._tokens_per_byte = _middle(sized[_PROMPT] / sized[_SIZE])
            self._usual_output = _middle(calls[_OUTPUT][-ERRORS:])
        return self._speed


class LatencyModels:
    """All models of all backends."""

    def __init__(self) -> None:
        self._models: OrderedDict[tuple[str, str], ModelLatency] = OrderedDict()

    def learn(
        self,
        backend: str,
        model: str,
        *,
        input: int,
        cached: int,
        output: float,
        first_ms: float | None,
        ms: float,
        size: int = 0,
    ) -> None:
        """A call has been answered well. `cached`: tokens of the prompt that the backend had; `output`: tokens written
        one after the other, so of several choices one's share; `first_ms` from the call to the first byte of a stream;
        `size`: bytes of the request's body. What makes no sense is left alone."""
        tokens = (max(0, input - cached), output)
        if not (isfinite(ms) and ms > 0 and input + output > 0 and max(tokens) <= MAX_TOKENS):
            return
        first = first_ms if first_ms is not None and 0 <= first_ms <= ms else float("nan")
        known = self._models.get((backend, model))
        if known is None:
            known = self._models[backend, model] = ModelLatency()
            if len(self._models) > MAX_MODELS:
                self._models.popitem(last=False)
        else:
            self._models.move_to_end((backend, model))
        known.learn(*tokens, first, ms, size)

    def predict(self, backend: str, model: str, input: int, output: int) -> float | None:
        """Milliseconds of a call with so many tokens to read and to write; None where none has been seen yet."""
        known = self._models.get((backend, model))
        return None if known is None else known.predict(input, output)

    def expect(self, backend: str, model: str, size: int, most: float | None) -> float | None:
        """Milliseconds of a call before its tokens are known: `size` are the bytes of its body, `most` the most tokens
        that it lets the answer have."""
        known = self._models.get((backend, model))
        return None if known is None else known.expect(size, most)

    def decode_tps(self, backend: str, model: str) -> float | None:
        """Tokens a second of one answer; None where they are not known, or take no time that could be measured."""
        known = self._models.get((backend, model))
        return None if known is None else known.decode_tps

    def as_dict(self) -> dict[str, dict[str, dict[str, Any]]]:
        """By backend and model."""
        out: dict[str, dict[str, dict[str, Any]]] = {}
        for (backend, model), known in self._models.items():
            out.setdefault(backend, {})[model] = known.as_dict()
        return out


def _middle(values: np.ndarray) -> float:
    """The median (the upper one of two). numpy's own imports a module at its first call, for many milliseconds."""
    return float(np.sort(values)[len(values) // 2])


def _per_second(ms: float) -> float | None:
    return round(1000 / ms, 1) if ms >= 1e-4 else None
