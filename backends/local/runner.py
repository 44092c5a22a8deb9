"""The model's forward pass over a batch of segments, and whether this model can be run that way at all."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from backends.local.attention import NAME, Batch, Segment
from backends.local.kv import Budget, KvShape, SequenceKv

TOLERANCE = 0.02
"""How far scores of the batched pass may be from the model's own, as a share of their spread, in fp32. Measured: 1e-6.
A wrong mask or position gives more than 0.1."""
LOW_TOLERANCE = 0.4
"""The same in bf16 and with quantized weights, which round at other places. Measured: up to 0.05 with such weights,
0.13 in bf16, 0.22 with both where the processor multiplies in bf16 (AMX). One token in the middle that is not seen
gives 0.5, a wrong position more than 8."""

TEST_TOKENS = 40
LAYERS = {"full_attention", "sliding_attention"}
"""The kinds of attention that attention.py has. Others may differ only beyond the length of the self-test."""


class UnsupportedModel(Exception):
    """The model cannot be run in batches of segments. The text says why."""


class Runner:
    """Runs `model` (a causal LM of transformers, in eval mode). Raises UnsupportedModel for one whose attention is not
    what it can replace, found by comparing scores with those of the model's own attention."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.device: torch.device = model.device
        config = model.config.get_text_config()
        if strange := set(getattr(config, "layer_types", None) or ()) - LAYERS:
            raise UnsupportedModel(f"it has layers of the kind {', '.join(sorted(strange))}")
        tokens = [token % config.vocab_size for token in range(1, 1 + TEST_TOKENS)]
        try:
            expected = self._own_scores(tokens)
            model.set_attn_implementation(NAME)
            self.shape = self._probe(tokens)
            self._check(tokens, expected)
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UnsupportedModel(f"its attention cannot be replaced ({type(error).__name__}: {error})") from error

    @torch.inference_mode()
    def forward(self, segments: Sequence[Segment]) -> torch.Tensor:
        """Computes the tokens of all segments; the scores after the last one of each, (segments, vocabulary). The
        sequences' buffers have these tokens afterwards, and room for them before."""
        batch = Batch(segments)
        tokens: list[int] = []
        positions: list[int] = []
        last: list[int] = []
        for segment in segments:
            start = segment.kv.length
            tokens += segment.tokens
            positions += range(start, start + len(segment.tokens))
            last.append(len(tokens) - 1)
        scores = self._run(tokens, positions, last, batch)
        for segment in segments:
            segment.kv.length += len(segment.tokens)
        return scores

    def _run(self, tokens: list[int], positions: list[int], last: list[int], batch: object) -> torch.Tensor:
        output = self._model(
            input_ids=torch.tensor([tokens], device=self.device),
            position_ids=torch.tensor([positions], device=self.device),
            use_cache=False,
            logits_to_keep=torch.tensor(last, device=self.device),
            batch=batch,
        )
        scores: torch.Tensor = output.logits[0]
        if len(scores) != len(last):
            raise ValueError("it gives scores of other tokens than asked for")
        return scores

    @torch.inference_mode()
    def _own_scores(self, tokens: list[int]) -> torch.Tensor:
        """After every token, by the model's own attention."""
        output = self._model(input_ids=torch.tensor([tokens], device=self.device), use_cache=False)
        scores: torch.Tensor = output.logits[0]
        return scores

    @torch.inference_mode()
    def _probe(self, tokens: list[int]) -> KvShape:
        probe = _Probe()
        self._run(tokens, list(range(len(tokens))), [len(tokens) - 1], probe)
        config = self._model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or ["sliding_attention"]
        if getattr(config, "sliding_window", None) and "sliding_attention" in kinds and not probe.windows:
            raise UnsupportedModel("its sliding window is in a mask of its own")
        layers = config.num_hidden_layers
        if sorted(probe.layers) != list(range(layers)):
            raise UnsupportedModel(f"only {len(probe.layers)} of its {layers} layers have attention of the usual kind")
        shapes = set(probe.layers.values())
        if len(shapes) != 1:
            raise UnsupportedModel("its layers keep keys and values of different shapes")
        heads, key_dim, value_dim, dtype = shapes.pop()
        return KvShape(layers, heads, key_dim, value_dim, dtype, self.device)

    def _check(self, tokens: list[int], expected: torch.Tensor) -> None:
        """Two sequences in pieces, side by side: another half of the tokens must not disturb the first one."""
        budget = Budget(1024)
        kvs = [SequenceKv(self.shape, budget) for _ in range(2)]
        for kv in kvs:
            kv.grow(len(tokens))
        backwards = tokens[::-1]
        self.forward([Segment(tokens[:17], kvs[0]), Segment(backwards[:5], kvs[1])])
        self.forward([Segment(backwards[5:30], kvs[1]), Segment(tokens[17:-1], kvs[0])])
        found = self.forward([Segment(backwards[30:31], kvs[1]), Segment(tokens[-1:], kvs[0])])[1]
        spread = float(expected[-1].float().std())
        far = float((found.float() - expected[-1].float()).abs().max()) / max(spread, 1e-9)
        # A quantized model has bf16 among its tensors, whatever the type of its keys and values.
        tensors = [*self._model.parameters(), *self._model.buffers()]
        exact = all(tensor.dtype != torch.bfloat16 for tensor in tensors)
        tolerance = TOLERANCE if exact else LOW_TOLERANCE
        if not far <= tolerance:  # NaN is far, too
            raise UnsupportedModel(
                f"computed in batches its scores are {far:.3f} of their spread away from those of its own attention"
            )


class _Probe:
    """In place of a Batch: one whole sequence, and a note of what each layer keeps."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[int, int, int, torch.dtype]] = {}
        self.windows: set[int] = set()

    def attend(
        self,
        layer: int,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *,
        scaling: float | None,
        window: int | None,
        **_: Any,
    ) -> torch.Tensor:
        if window is not None:
            self.windows.add(window)
        self.layers[layer] = (key.shape[1], key.shape[3], value.shape[3], key.dtype)
        group = query.shape[1] // key.shape[1]
        keys, values = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
        return scaled_dot_product_attention(query, keys, values, is_causal=True, scale=scaling).transpose(1, 2)
