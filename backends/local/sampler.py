"""From the model's scores to the next token."""

import torch

from backends.local.work import Sampling

MASK_64 = 2**64 - 1


def random_source(seed: int | None, choice: int) -> torch.Generator:
    """The generator of one choice, on the CPU. The same seed gives the same answer, and each of `n` choices its own."""
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed((seed + choice) & MASK_64)
    return generator


def sample(scores: torch.Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """The next token, from scores of shape (vocabulary,), in any float type."""
    if sampling.temperature == 0:
        return int(scores.argmax())
    scores = scores.float().cpu()
    # Less the maximum before the division, so that a tiny temperature gives the greedy token and not NaN.
    probabilities = torch.softmax((scores - scores.max()) / sampling.temperature, dim=-1)
    tokens: torch.Tensor | None = None
    if sampling.top_k > 0 or sampling.top_p < 1:
        probabilities, tokens = probabilities.sort(descending=True)
        if sampling.top_k > 0:
            probabilities, tokens = probabilities[: sampling.top_k], tokens[: sampling.top_k]
        if sampling.top_p < 1:
            # Kept while the mass of the likelier tokens is below top_p, so the first one always is.
            before = probabilities.cumsum(dim=-1) - probabilities
            kept = max(1, int((before < sampling.top_p * probabilities.sum()).sum()))
            probabilities, tokens = probabilities[:kept], tokens[:kept]
    drawn = int(torch.multinomial(probabilities, 1, generator=generator))
    return drawn if tokens is None else int(tokens[drawn])
