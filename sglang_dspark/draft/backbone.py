"""The draft backbone in Qwen3 geometry (checkpoints: forward pass): torch, no SGLang.

Attention is handed in as a callable, so that this file holds the mathematics and nothing of KV
pools. Two entries: the context keys and values of committed positions, and one block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from sglang_dspark.draft.checkpoint import DraftConfig
from sglang_dspark.ops.packed import Product, product

# (layer, q [rows, nh * D], k [rows, nkv * D], v [rows, nkv * D]) -> [rows, nh * D]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Layer:
    """One draft layer, projections fused as far as they share an input."""

    input_norm: Tensor  # [H]
    qkv: Product  # H -> (nh + 2 nkv) D
    qk_norm: Tensor  # [nh + nkv, D]: q_norm for the query heads, k_norm for the key heads
    o: Product  # nh D -> H
    mlp_norm: Tensor  # [H]
    gate_up: Product  # H -> 2 I
    down: Product  # I -> H


class Backbone:
    """h_1..h_gamma of a block, and the context keys and values it attends to."""

    def __init__(self, config: DraftConfig, weights: Mapping[str, Tensor], rope: Tensor) -> None:
        """weights: as `load_draft_weights` returns them; rope: [positions, D], cos then sin."""
        self._config = config
        self._layers = [_fuse_layer(config, weights, i) for i in range(config.num_layers)]
        self._fc = product(weights["fc.weight"])  # m H -> H
        self._context_norm = weights["hidden_norm.weight"]
        self._final_norm = weights["norm.weight"]
        self._eps = config.rms_norm_eps
        self._num_heads, self._num_kv_heads = config.num_heads, config.num_kv_heads
        self._head_dim = config.head_dim
        # All layers' keys and values of a context row come out of one product.
        layers = range(config.num_layers)
        kv = torch.cat([_joined(weights, i, "kv", "weight") for i in layers])  # [L 2 nkv D, H]
        biased = config.attention_bias
        bias = torch.cat([_joined(weights, i, "kv", "bias") for i in layers]) if biased else None
        self._kv = product(kv, bias)
        self._k_norm = torch.stack([layer.qk_norm[self._num_heads :] for layer in self._layers])
        cos, sin = rope.to(self._context_norm.dtype).chunk(2, dim=-1)  # [positions, D / 2] each
        self._cos = torch.cat([cos, cos], -1)
        self._signed_sin = torch.cat([-sin, sin], -1)

    def context_kv(self, features: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of committed rows, from the target's captured layer outputs.

        features [n, m H]; positions [n] int64. Returns two [L, n, nkv, D]; no `input_layernorm`
        is applied to the context (checkpoints, fast fact 3).
        """
        context = self._norm(self._fc(features), self._context_norm)
        kv = self._kv(context).view(-1, len(self._layers), 2, self._num_kv_heads, self._head_dim)
        k, v = kv.permute(2, 1, 0, 3, 4).unbind(0)  # [L, n, nkv, D]
        k = rms_norm(k, (self._head_dim,), eps=self._eps) * self._k_norm.unsqueeze(1)
        return self._rotate(k, *self._rope_rows(positions)), v

    def block(self, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """hidden [rows, H]: embeddings of [anchor, mask, ...] of every request -> h [rows, H]."""
        cos, sin = self._rope_rows(positions)
        for i, layer in enumerate(self._layers):
            x = self._norm(hidden, layer.input_norm)
            q, k, v = self._project(layer, x, cos, sin)
            hidden = hidden + layer.o(attend(i, q, k, v))
            x = self._norm(hidden, layer.mlp_norm)
            gate, up = layer.gate_up(x).chunk(2, dim=-1)
            hidden = hidden + layer.down(silu(gate).mul_(up))
        return self._norm(hidden, self._final_norm)

    def _project(
        self, layer: Layer, x: Tensor, cos: Tensor, sin: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        heads, kv_heads = self._num_heads, self._num_kv_heads
        qkv = layer.qkv(x).view(-1, heads + 2 * kv_heads, self._head_dim)
        qk, v = qkv.split([heads + kv_heads, kv_heads], dim=1)
        qk = self._rotate(rms_norm(qk, (self._head_dim,), eps=self._eps) * layer.qk_norm, cos, sin)
        q, k = qk.split([heads, kv_heads], dim=1)
        return q.flatten(1), k, v

    def _rope_rows(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and signed sin [n, 1, D] of the given positions."""
        return (
            self._cos.index_select(0, positions).unsqueeze(1),
            self._signed_sin.index_select(0, positions).unsqueeze(1),
        )

    def _rotate(self, x: Tensor, cos: Tensor, signed_sin: Tensor) -> Tensor:
        """Rotary embedding, halves convention; x [..., n, heads, D]."""
        # Rolling by D/2 swaps the halves; the sign of the first one sits in the sine.
        return torch.addcmul(x * cos, x.roll(self._head_dim // 2, -1), signed_sin)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight.shape, weight, self._eps)


def _fuse_layer(config: DraftConfig, weights: Mapping[str, Tensor], index: int) -> Layer:
    def tensor(name: str) -> Tensor:
        return weights[f"layers.{index}.{name}"]

    biased = config.attention_bias
    q_norm = tensor("self_attn.q_norm.weight").expand(config.num_heads, -1)
    k_norm = tensor("self_attn.k_norm.weight").expand(config.num_kv_heads, -1)
    return Layer(
        input_norm=tensor("input_layernorm.weight"),
        qkv=product(
            _joined(weights, index, "qkv", "weight"),
            _joined(weights, index, "qkv", "bias") if biased else None,
        ),
        qk_norm=torch.cat([q_norm, k_norm]),
        o=product(
            tensor("self_attn.o_proj.weight"),
            tensor("self_attn.o_proj.bias") if biased else None,
        ),
        mlp_norm=tensor("post_attention_layernorm.weight"),
        gate_up=product(torch.cat([tensor("mlp.gate_proj.weight"), tensor("mlp.up_proj.weight")])),
        down=product(tensor("mlp.down_proj.weight")),
    )


def _joined(weights: Mapping[str, Tensor], index: int, projections: str, kind: str) -> Tensor:
    """Weights or biases of some of a layer's q, k and v projections, one below the other."""
    names = (f"layers.{index}.self_attn.{p}_proj.{kind}" for p in projections)
    return torch.cat([weights[name] for name in names])
