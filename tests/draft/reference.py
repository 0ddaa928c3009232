"""The draft, written down once more from the formulas of `design/checkpoints.md` 1.6 to 1.9.

One request, one shot, no cache, nothing precomputed: slow and obvious. It settles what
`draft/heads.py` and the engine's backbone must return.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from sglang_dspark.draft.checkpoint import DraftConfig, read_draft_config


@dataclass(frozen=True)
class Proposal:
    tokens: list[int]  # x_1..x_gamma, greedy
    hidden: Tensor  # [gamma, H] after the final norm
    logits: Tensor  # [gamma, V] corrected: base + Markov bias
    confidence: Tensor | None  # [gamma] logits


class ReferenceDraft:
    """fp32 (or fp64) draft of one directory, with its target's embedding and LM head."""

    def __init__(self, draft_dir: Path, target: Qwen3ForCausalLM) -> None:
        self.config: DraftConfig = read_draft_config(draft_dir)
        self.dtype = target.dtype
        self.w = {
            name.removeprefix("model."): tensor.to(self.dtype)
            for file in draft_dir.glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        self.embedding = target.model.embed_tokens.weight.detach()
        self.lm_head = target.lm_head.weight.detach()

    def propose(self, features: Tensor, anchor: int, gamma: int) -> Proposal:
        """features: [S, m*H] of positions 0..S-1; the anchor stands at position S."""
        hidden = self.block_hidden(features, anchor, gamma)
        state = torch.zeros(self.config.markov_rank, dtype=self.dtype)
        previous, tokens, logits = anchor, [], []
        for h_k in hidden:
            bias, state = self.markov_bias(state, previous, h_k)
            logits.append(self.lm_head @ h_k + bias)
            previous = int(logits[-1].argmax())
            tokens.append(previous)
        confidence = None
        if self.config.confidence is not None:
            pairs = zip([anchor, *tokens[:-1]], hidden, strict=True)
            confidence = torch.stack([self.confidence_logit(x, h_k) for x, h_k in pairs])
        return Proposal(tokens, hidden, torch.stack(logits), confidence)

    # ------------------------------------------------------------------------------- backbone

    def block_hidden(self, features: Tensor, anchor: int, gamma: int) -> Tensor:
        c, w = self.config, self.w
        start = features.shape[0]
        context = self.norm(features @ w["fc.weight"].T, "hidden_norm.weight")
        ids = [anchor] + [c.mask_token_id] * (gamma - 1)
        h = self.embedding[torch.tensor(ids)]
        for i in range(c.num_layers):
            prefix = f"layers.{i}."
            x = self.norm(h, prefix + "input_layernorm.weight")
            h = h + self.attention(prefix + "self_attn.", x, context, start)
            y = self.norm(h, prefix + "post_attention_layernorm.weight")
            gate = torch.nn.functional.silu(y @ w[prefix + "mlp.gate_proj.weight"].T)
            up = y @ w[prefix + "mlp.up_proj.weight"].T
            h = h + (gate * up) @ w[prefix + "mlp.down_proj.weight"].T
        return self.norm(h, "norm.weight")

    def attention(self, prefix: str, x: Tensor, context: Tensor, start: int) -> Tensor:
        c = self.config
        sources = torch.cat([context, x])  # the context is not normalised again
        q = self.linear(x, prefix + "q_proj").view(-1, c.num_heads, c.head_dim)
        k = self.linear(sources, prefix + "k_proj").view(-1, c.num_kv_heads, c.head_dim)
        v = self.linear(sources, prefix + "v_proj").view(-1, c.num_kv_heads, c.head_dim)
        positions = torch.arange(sources.shape[0])
        q = self.rope(self.norm(q, prefix + "q_norm.weight"), positions[start:])
        k = self.rope(self.norm(k, prefix + "k_norm.weight"), positions)
        group = c.num_heads // c.num_kv_heads
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / c.head_dim**0.5
        out = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v)
        return self.linear(out.flatten(1), prefix + "o_proj")

    def linear(self, x: Tensor, name: str) -> Tensor:
        out = x @ self.w[name + ".weight"].T
        return out + self.w[name + ".bias"] if name + ".bias" in self.w else out

    def norm(self, x: Tensor, name: str) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.w[name] * x * torch.rsqrt(variance + self.config.rms_norm_eps)

    def rope(self, x: Tensor, positions: Tensor) -> Tensor:
        """x: [n, heads, D]; rotates the pairs (i, i + D/2)."""
        frequency, scale = self._frequencies()
        angle = (positions[:, None].double() * frequency.double())[:, None, :]  # [n, 1, D/2]
        cos, sin = (angle.cos() * scale).to(x.dtype), (angle.sin() * scale).to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    def _frequencies(self) -> tuple[Tensor, float]:
        c = self.config
        if c.rope_scaling is None:
            exponent = torch.arange(0, c.head_dim, 2, dtype=torch.float64) / c.head_dim
            return c.rope_theta**-exponent, 1.0
        hf = Qwen3Config(
            head_dim=c.head_dim,
            max_position_embeddings=c.max_position_embeddings,
            rope_parameters={"rope_theta": c.rope_theta, **c.rope_scaling},
        )
        return ROPE_INIT_FUNCTIONS[c.rope_scaling["rope_type"]](hf, torch.device("cpu"))

    # ---------------------------------------------------------------------------------- heads

    def markov_bias(self, state: Tensor, previous: int, h_k: Tensor) -> tuple[Tensor, Tensor]:
        """state: [r]; h_k: [H] -> bias [V], next state."""
        w = self.w
        e, w2 = self._w1(previous), self._target_rows(w["markov_head.markov_w2.weight"])
        if self.config.markov_head_type == "vanilla":
            return w2 @ e, state
        if self.config.markov_head_type == "gated":
            z = w["markov_head.gate_proj.weight"] @ torch.cat([h_k, e])
            return w2 @ (torch.sigmoid(z + w["markov_head.gate_proj.bias"]) * e), state
        z = w["markov_head.joint_proj.weight"] @ torch.cat([state, e, h_k])
        p_g, p_c, p_o = (z + w["markov_head.joint_proj.bias"]).chunk(3)
        gate = torch.sigmoid(p_g)
        return w2 @ torch.tanh(p_o), gate * state + (1 - gate) * torch.tanh(p_c)

    def confidence_logit(self, previous: int, h_k: Tensor) -> Tensor:
        confidence = self.config.confidence
        assert confidence is not None
        x = torch.cat([h_k, self._w1(previous)]) if confidence.with_markov else h_k
        return self.w["confidence_head.proj.weight"][0] @ x + self.w["confidence_head.proj.bias"][0]

    def _w1(self, token: int) -> Tensor:
        return self._target_rows(self.w["markov_head.markov_w1.weight"])[token]

    def _target_rows(self, table: Tensor) -> Tensor:
        """Padding rows of either side carry no bias."""
        padded = torch.zeros(self.embedding.shape[0], table.shape[1], dtype=table.dtype)
        rows = min(table.shape[0], padded.shape[0])
        padded[:rows] = table[:rows]
        return padded


# ------------------------------------------------------------------------------------ whole rounds


def load_target(target_dir: Path, dtype: torch.dtype = torch.float32) -> Qwen3ForCausalLM:
    target: Qwen3ForCausalLM = Qwen3ForCausalLM.from_pretrained(
        target_dir, dtype=dtype, attn_implementation="eager"
    )
    return target  # in evaluation mode


@torch.inference_mode()
def target_forward(
    target: Qwen3ForCausalLM, ids: Sequence[int], layer_ids: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """-> logits [T, V] and features [T, m*H] of every position."""
    out = target(torch.tensor([list(ids)]), output_hidden_states=True)
    return out.logits[0], torch.cat([out.hidden_states[i + 1][0] for i in layer_ids], dim=-1)


@torch.inference_mode()
def speculate_greedy(
    target: Qwen3ForCausalLM, draft: ReferenceDraft, prompt: Sequence[int], num_new: int, gamma: int
) -> tuple[list[int], list[int]]:
    """Greedy rounds of draft and verify -> (at least num_new output tokens, drafts accepted per
    round). The whole sequence is computed anew in every round.
    """
    layer_ids = draft.config.capture_layer_ids
    ids = list(prompt)
    logits, features = target_forward(target, ids, layer_ids)
    ids.append(int(logits[-1].argmax()))
    accepted_per_round = []
    while len(ids) - len(prompt) < num_new:
        drafts = draft.propose(features, ids[-1], gamma).tokens
        logits, features = target_forward(target, ids + drafts, layer_ids)
        wanted = logits[len(ids) - 1 :].argmax(-1).tolist()
        accepted = next((k for k, x in enumerate(drafts) if x != wanted[k]), gamma)
        features = features[: len(ids) + accepted]
        ids += [*drafts[:accepted], wanted[accepted]]
        accepted_per_round.append(accepted)
    return ids[len(prompt) :], accepted_per_round
