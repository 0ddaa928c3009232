"""The reference itself, against transformers' Qwen3 layers where the two must agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RotaryEmbedding

from tests.draft.reference import ReferenceDraft, load_target, target_forward
from tests.planted import HIDDEN, LAYER_IDS, Pair

MakePair = Callable[..., Pair]
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize("attention_bias", [False, True])
@pytest.mark.parametrize(
    "rope_scaling",
    [
        None,
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {"rope_type": "llama3", "factor": 8.0, **LLAMA3},
    ],
)
@torch.inference_mode()
def test_a_block_without_context_is_a_qwen3_stack_without_mask(
    random_pair: MakePair, attention_bias: bool, rope_scaling: dict[str, Any] | None
) -> None:
    pair = random_pair(attention_bias=attention_bias, rope_scaling=rope_scaling)
    draft = ReferenceDraft(pair.draft, load_target(pair.target))
    config = Qwen3Config.from_pretrained(pair.draft, attn_implementation="eager")
    positions = torch.arange(5)[None]
    h = draft.embedding[torch.tensor([[7, *[draft.config.mask_token_id] * 4]])]
    rotary = Qwen3RotaryEmbedding(config)(h, positions)
    for i in range(draft.config.num_layers):
        layer = Qwen3DecoderLayer(config, i).eval()
        prefix = f"layers.{i}."
        layer.load_state_dict(
            {k.removeprefix(prefix): v for k, v in draft.w.items() if k.startswith(prefix)}
        )
        h = layer(h, attention_mask=None, position_embeddings=rotary)
    wanted = draft.norm(h[0], "norm.weight")
    got = draft.block_hidden(torch.zeros(0, len(LAYER_IDS) * HIDDEN), 7, 5)
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_features_are_raw_layer_outputs(random_pair: MakePair) -> None:
    target = load_target(random_pair().target)
    outputs: dict[int, torch.Tensor] = {}
    for i in LAYER_IDS:
        target.model.layers[i].register_forward_hook(
            lambda _module, _args, out, i=i: outputs.update({i: out[0]})
        )
    _, features = target_forward(target, [5, 6, 7, 8], LAYER_IDS)
    wanted = torch.cat([outputs[i].view(4, HIDDEN) for i in LAYER_IDS], dim=-1)
    assert torch.equal(features, wanted)


@torch.inference_mode()
def test_fewer_rows_see_fewer_masks(random_pair: MakePair) -> None:
    """gamma below the trained block drafts as a model with that many rows; rows see each other."""
    pair = random_pair()
    target = load_target(pair.target)
    draft = ReferenceDraft(pair.draft, target)
    _, features = target_forward(target, [5, 6, 7, 8], LAYER_IDS)
    short, whole = draft.block_hidden(features, 9, 3), draft.block_hidden(features, 9, 5)
    assert short.shape == (3, HIDDEN)
    assert not torch.allclose(short, whole[:3], atol=1e-3)
