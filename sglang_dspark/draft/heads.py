"""The sequential heads of a draft: Markov bias per token, confidence per block.

A Markov head is used left to right, one call per draft position:

    state = head.start(bs)
    bias, state = head.bias(state, prev_token, h_k)    # [bs] int64, [bs, H] -> [bs, V]

Every part that depends on the previous token alone is a table over the vocabulary, made once at
load; a call then costs a few dispatches, which is what a step at batch 1 pays for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear

from sglang_dspark.draft.checkpoint import DraftConfig

# A [V, V] bias table is made up to this size: V 5,792 in fp32. Looking a row up takes 2.6 us where
# W2 . e takes 31 us at rank 64 and 76 us at rank 128 (V 4,096, batch 1, fp32, one CPU thread).
MAX_BIAS_TABLE_BYTES = 128 << 20


class MarkovHead(Protocol):
    """State is None for heads that carry nothing from one draft position to the next."""

    def start(self, batch_size: int) -> Tensor | None: ...

    def bias(
        self, state: Tensor | None, prev_token: Tensor, h_k: Tensor
    ) -> tuple[Tensor, Tensor | None]: ...


@dataclass(frozen=True, slots=True)
class TabledVanillaHead:
    """B_k = table[x_{k-1}], for vocabularies whose square fits in memory."""

    table: Tensor  # [V, V] W1 W2^T

    def start(self, batch_size: int) -> None:
        return None

    def bias(self, state: Tensor | None, prev_token: Tensor, h_k: Tensor) -> tuple[Tensor, None]:
        return self.table.index_select(0, prev_token), None


@dataclass(frozen=True, slots=True)
class VanillaHead:
    """B_k = W2 e, with e = W1[x_{k-1}]."""

    w1: Tensor  # [V, r]
    w2: Tensor  # [V, r]

    def start(self, batch_size: int) -> None:
        return None

    def bias(self, state: Tensor | None, prev_token: Tensor, h_k: Tensor) -> tuple[Tensor, None]:
        return linear(self.w1.index_select(0, prev_token), self.w2), None


@dataclass(frozen=True, slots=True)
class GatedHead:
    """B_k = W2 (g * e), g = sigmoid(G [h_k ; e] + b)."""

    w1: Tensor  # [V, r]
    w2: Tensor  # [V, r]
    gate_hidden: Tensor  # [r, H]
    gate_table: Tensor  # [V, r] the gate's logits from e, with the bias

    def start(self, batch_size: int) -> None:
        return None

    def bias(self, state: Tensor | None, prev_token: Tensor, h_k: Tensor) -> tuple[Tensor, None]:
        gate = linear(h_k, self.gate_hidden) + self.gate_table.index_select(0, prev_token)
        return linear(gate.sigmoid_() * self.w1.index_select(0, prev_token), self.w2), None


@dataclass(frozen=True, slots=True)
class RnnHead:
    """A gated recurrent state s; the bias of x_k is read from s_{k-1}, before the update."""

    w2: Tensor  # [V, r]
    joint_state: Tensor  # [3r, r]
    joint_hidden: Tensor  # [3r, H]
    joint_table: Tensor  # [V, 3r] the projection of e, with the bias

    def start(self, batch_size: int) -> Tensor:
        return self.w2.new_zeros(batch_size, self.w2.shape[1])

    def bias(
        self, state: Tensor | None, prev_token: Tensor, h_k: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        assert state is not None
        joint = linear(h_k, self.joint_hidden) + self.joint_table.index_select(0, prev_token)
        keep, candidate, output = (joint + linear(state, self.joint_state)).chunk(3, dim=1)
        # lerp(a, b, w) = a + w (b - a): sigmoid(p_g) s + (1 - sigmoid(p_g)) tanh(p_c)
        new_state = torch.lerp(candidate.tanh(), state, keep.sigmoid())
        return linear(output.tanh(), self.w2), new_state


@dataclass(frozen=True, slots=True)
class ConfidenceHead:
    """logit_k = w_h . h_k + table[x_{k-1}]; the table holds w_e . W1[x] + b, or b alone."""

    hidden_weight: Tensor  # [H] fp32
    table: Tensor  # [V] fp32

    def logits(self, h: Tensor, prev_tokens: Tensor) -> Tensor:
        """h: [bs, gamma, H]; prev_tokens: [bs, gamma] int64, the anchor first -> [bs, gamma]."""
        return h.float() @ self.hidden_weight + self.table[prev_tokens]


def build_markov_head(
    config: DraftConfig,
    weights: Mapping[str, Tensor],
    *,
    max_table_bytes: int = MAX_BIAS_TABLE_BYTES,
) -> MarkovHead:
    """`weights` as `load_draft_weights` returns them; vocabulary rows are the target's."""
    w1, w2 = weights["markov_head.markov_w1.weight"], weights["markov_head.markov_w2.weight"]
    rank, hidden = config.markov_rank, config.hidden_size
    if config.markov_head_type == "vanilla":
        # fp32 whatever the weights' type, as the base logits are: adding needs no conversion.
        if 4 * w1.shape[0] * w2.shape[0] <= max_table_bytes:
            return TabledVanillaHead(table=w1.float() @ w2.float().T)
        return VanillaHead(w1=w1, w2=w2)
    if config.markov_head_type == "gated":
        gate, bias = weights["markov_head.gate_proj.weight"], weights["markov_head.gate_proj.bias"]
        gate_hidden, gate_embedding = torch.split(gate, [hidden, rank], dim=1)
        return GatedHead(w1, w2, gate_hidden.contiguous(), linear(w1, gate_embedding, bias))
    joint, bias = weights["markov_head.joint_proj.weight"], weights["markov_head.joint_proj.bias"]
    joint_state, joint_embedding, joint_hidden = torch.split(joint, [rank, rank, hidden], dim=1)
    return RnnHead(
        w2=w2,
        joint_state=joint_state.contiguous(),
        joint_hidden=joint_hidden.contiguous(),
        joint_table=linear(w1, joint_embedding, bias),
    )


def build_confidence_head(
    config: DraftConfig, weights: Mapping[str, Tensor]
) -> ConfidenceHead | None:
    """None for a draft without the head: nothing that needs confidences can be switched on."""
    if config.confidence is None:
        return None
    w1 = weights["markov_head.markov_w1.weight"].float()
    weight = weights["confidence_head.proj.weight"].float()[0]
    hidden_weight, embedding_weight = weight[: config.hidden_size], weight[config.hidden_size :]
    table = w1 @ embedding_weight if config.confidence.with_markov else w1.new_zeros(w1.shape[0])
    if config.confidence.has_bias:
        table = table + weights["confidence_head.proj.bias"].float()
    return ConfidenceHead(hidden_weight=hidden_weight.contiguous(), table=table)
