"""The backbone against the plain reference: whole blocks on random weights, context in pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from sglang_dspark.draft.backbone import Backbone
from sglang_dspark.draft.checkpoint import DraftConfig, read_draft_config
from sglang_dspark.draft.weights import load_draft_weights
from tests.draft.conftest import tiny_target
from tests.draft.reference import ReferenceDraft, load_target
from tests.planted import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYER_IDS, Pair

MakePair = Callable[..., Pair]


def rope_table(reference: ReferenceDraft, length: int) -> Tensor:
    """[positions, D], cos then sin, from the reference's frequencies."""
    frequency, scale = reference._frequencies()
    angle = torch.arange(length)[:, None].double() * frequency.double()
    return torch.cat([angle.cos() * scale, angle.sin() * scale], dim=-1).float()


class OneRequest:
    """Context keys and values of one request, and dense attention to them and to the block."""

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.k: list[Tensor] = []
        self.v: list[Tensor] = []
        self.length = 0

    def append(self, features: Tensor) -> None:
        positions = torch.arange(self.length, self.length + len(features))
        k, v = self.backbone.context_kv(features, positions)
        self.k.append(k)
        self.v.append(v)
        self.length += len(features)

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q = q.view(-1, HEADS, HEAD_DIM)
        k = torch.cat([*(part[layer] for part in self.k), k.view(-1, KV_HEADS, HEAD_DIM)])
        v = torch.cat([*(part[layer] for part in self.v), v.view(-1, KV_HEADS, HEAD_DIM)])
        k, v = (x.repeat_interleave(HEADS // KV_HEADS, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)


def block_of(
    config: DraftConfig, reference: ReferenceDraft, pieces: Sequence[Tensor], gamma: int
) -> Tensor:
    weights = load_draft_weights(config, tiny_target(), dtype=torch.float32)
    backbone = Backbone(config, weights, rope_table(reference, 256))
    request = OneRequest(backbone)
    for piece in pieces:
        request.append(piece)
    ids = torch.tensor([7, *[config.mask_token_id] * (gamma - 1)])
    positions = torch.arange(request.length, request.length + gamma)
    return backbone.block(reference.embedding[ids], positions, request.attend)


@pytest.mark.parametrize("gamma", [1, 3, 5])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"attention_bias": True},
        {"num_draft_layers": 1},
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "max_positions": 128},
    ],
)
@torch.inference_mode()
def test_a_block_is_the_reference(
    random_pair: MakePair, options: dict[str, Any], gamma: int
) -> None:
    pair = random_pair(**options)
    reference = ReferenceDraft(pair.draft, load_target(pair.target))
    features = torch.randn(40, len(LAYER_IDS) * HIDDEN, generator=torch.Generator().manual_seed(3))
    wanted = reference.block_hidden(features, 7, gamma)
    config = read_draft_config(pair.draft)
    for cuts in ([40], [1, 30, 9]):
        got = block_of(config, reference, torch.split(features, cuts), gamma)
        torch.testing.assert_close(got, wanted, rtol=2e-5, atol=2e-5)
