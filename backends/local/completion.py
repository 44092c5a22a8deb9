"""One request on the model, from its prompt's tokens to the events that its reply is made of."""

from collections.abc import Callable, Iterator

from backends.local.choice import Choice
from backends.local.generate import generate
from backends.local.load import LoadedModel
from backends.local.sampler import random_source
from backends.local.work import ChoiceEnd, Event, Piece, Usage, Work


def complete(loaded: LoadedModel, work: Work, cancelled: Callable[[], bool]) -> Iterator[Event]:
    """The events of the choices, one choice after the other. Raises Cancelled within one step of the model."""
    completion = 0
    for index in range(work.n):
        choice = Choice(
            decode=loaded.tokenizer.decode,
            stops=work.stops,
            end_tokens=loaded.end_tokens,
            max_tokens=work.max_tokens,
        )
        source = random_source(work.sampling.seed, index)
        for token in generate(loaded.model, work.prompt, work.sampling, source, cancelled):
            text = choice.push(token)
            if text:
                yield Piece(index, text)
            if choice.finish_reason is not None:
                yield ChoiceEnd(index, choice.finish_reason)
                break
        completion += choice.tokens
    yield Usage(prompt=len(work.prompt), completion=completion)
