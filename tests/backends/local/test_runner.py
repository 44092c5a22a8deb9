"""Which models of transformers can be run in batches: these give the tokens of their own attention, others are refused.

All are tiny and have random weights. Prompts are longer than the self-test's 40 tokens."""

import random
from typing import Any

import pytest
import torch
import transformers

from backends.local.attention import Segment
from backends.local.kv import Budget, SequenceKv
from backends.local.runner import Runner, UnsupportedModel
from tests.backends.local.tiny import Oracle, random_model

VOCABULARY = 160
CONTEXT = 512
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
ALIKE = {name: value for name, value in COMMON.items() if name != "num_key_value_heads"}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}

# By name: the model type and its configuration.
SUPPORTED: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", COMMON),
    "llama, frequencies that grow": (
        "llama",
        COMMON
        | {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen2": ("qwen2", COMMON),
    "qwen2, windows": ("qwen2", COMMON | {"use_sliding_window": True, "sliding_window": 48, "max_window_layers": 1}),
    "qwen3": ("qwen3", COMMON | {"head_dim": 16}),
    "qwen3 moe": ("qwen3_moe", COMMON | {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}),
    "mistral": ("mistral", COMMON | {"sliding_window": None}),
    "mistral, a small window": ("mistral", COMMON | {"sliding_window": 8}),
    "mistral, a window longer than the self-test": ("mistral", COMMON | {"sliding_window": 64}),
    "mixtral": ("mixtral", COMMON | {"num_local_experts": 4, "sliding_window": 48}),
    "gemma": ("gemma", COMMON | {"head_dim": 16}),
    "gemma2": (
        "gemma2",
        COMMON | {"head_dim": 16, "sliding_window": 48, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 30.0},
    ),
    "gemma3": ("gemma3_text", COMMON | {"head_dim": 16, "sliding_window": 48, "num_hidden_layers": 6}),
    "phi": ("phi", COMMON),
    "phi3": ("phi3", COMMON | {"sliding_window": 48}),
    "starcoder2": ("starcoder2", COMMON | {"sliding_window": 48}),
    "cohere2": ("cohere2", COMMON | {"sliding_window": 48, "num_hidden_layers": 4}),
    "olmo2": ("olmo2", COMMON),
    "smollm3": ("smollm3", COMMON),
    "granite": ("granite", COMMON | {"attention_multiplier": 0.3}),
    "gpt_neox": ("gpt_neox", ALIKE),
    "gpt2": ("gpt2", GPT2),
    "gptj": ("gptj", GPT2 | {"rotary_dim": 8}),
    "gpt_bigcode": ("gpt_bigcode", GPT2),
    "opt": ("opt", {"vocab_size": VOCABULARY, "hidden_size": 64, "word_embed_proj_dim": 64, "ffn_dim": 96}
        | {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}),
}  # fmt: skip

REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "no attention at all": ("mamba", {"vocab_size": VOCABULARY, "hidden_size": 64, "num_hidden_layers": 2}),
    "attention and state side by side": (
        "falcon_h1",
        COMMON | {"mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_d_state": 16},
    ),
    "attention that cannot be replaced": (
        "bloom",
        {"vocab_size": VOCABULARY, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    ),
    "arguments that do not reach attention": ("stablelm", COMMON),
    "a window that only its mask knows": ("phimoe", COMMON | {"num_local_experts": 4, "sliding_window": 64}),
    "scores of all tokens, asked for or not": (
        "whisper",
        {"vocab_size": VOCABULARY, "d_model": 64, "decoder_layers": 2, "decoder_attention_heads": 4}
        | {"decoder_ffn_dim": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "sinks, small ones": ("granitemoe_swa", COMMON | {"num_local_experts": 4, "sliding_window": 48}),
    "attention that sees what comes": ("bert", ALIKE),
    "attention in chunks longer than the self-test": (
        "llama4_text",
        COMMON | {"attention_chunk_size": 64, "num_local_experts": 2, "intermediate_size_mlp": 96, "head_dim": 16},
    ),
    "attention sinks": (
        "gpt_oss",
        COMMON | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 48},
    ),
    "a mask of its own": ("doge", COMMON),
    "a context shorter than the self-test": ("gpt2", GPT2 | {"n_positions": 32}),
}  # fmt: skip


def model_of(kind: str, options: dict[str, Any]) -> Any:
    return random_model(transformers.AutoConfig.for_model(kind, **options))


def answers(runner: Runner, prompts: list[list[int]], count: int) -> list[list[int]]:
    """What greedy choice makes after each, in pieces of random sizes and side by side."""
    chance, budget = random.Random(0), Budget(10**6)
    rows = [(list(prompt), SequenceKv(runner.shape, budget)) for prompt in prompts]
    for tokens, kv in rows:
        kv.grow(len(tokens) + count)
    while unfinished := [i for i, prompt in enumerate(prompts) if len(rows[i][0]) < len(prompt) + count]:
        segments = []
        for i in unfinished:
            tokens, kv = rows[i]
            size = min(len(tokens) - kv.length, chance.choice([1, 16, 33, 64]))
            segments.append(Segment(tokens[kv.length : kv.length + size], kv))
        scores = runner.forward(segments)
        assert scores.shape == (len(unfinished), VOCABULARY)
        for i, row in zip(unfinished, scores, strict=True):
            tokens, kv = rows[i]
            if kv.length == len(tokens):
                tokens.append(int(row.argmax()))
    return [tokens[len(prompt) :] for (tokens, _), prompt in zip(rows, prompts, strict=True)]


@pytest.mark.parametrize("name", SUPPORTED)
def test_batches_give_the_tokens_of_the_models_own_attention(name: str) -> None:
    model = model_of(*SUPPORTED[name])
    oracle, runner, chance = Oracle(model), Runner(model), random.Random(1)
    prompts = [[chance.randrange(3, VOCABULARY) for _ in range(length)] for length in (150, 1, 200, 20)]
    for prompt, made in zip(prompts, answers(runner, prompts, 10), strict=True):
        oracle.check(prompt, made)
    assert oracle.share > 0.9


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused(name: str) -> None:
    with pytest.raises(UnsupportedModel):
        Runner(model_of(*REFUSED[name]))


def test_low_precision_is_near_enough() -> None:
    model = model_of("llama", COMMON).to(torch.bfloat16)
    assert Runner(model).shape.dtype == torch.bfloat16


def test_what_a_token_takes() -> None:
    shape = Runner(model_of("llama", COMMON)).shape
    assert (shape.layers, shape.heads, shape.key_dim, shape.value_dim) == (2, 2, 16, 16)
