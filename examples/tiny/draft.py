"""The DSpark draft in plain torch, with the parameter names of DeepSpec's flat layout.

Shapes: B requests, S context positions, N blocks, G block size (rows = drafts), R Markov rank.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from model import KVCache, Layer, ModelConfig, RMSNorm, Target, rope_table
from safetensors.torch import load_file
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class DraftConfig:
    target: ModelConfig
    mask_token_id: int
    num_layers: int = 2
    block_size: int = 7
    markov_rank: int = 64
    num_anchors: int = 32  # per training window
    target_layer_ids: tuple[int, ...] = (1, 4, 7, 10)

    def to_hf(self, eos_token_id: int) -> dict:
        """config.json of a dense DSpark checkpoint: the target's with flat DSpark fields."""
        markov = {"markov_head_type": "vanilla"} if self.markov_rank else {}
        return self.target.to_hf(eos_token_id) | {
            "architectures": ["Qwen3DSparkModel"],
            "num_hidden_layers": self.num_layers,
            "num_target_layers": self.target.num_hidden_layers,
            "layer_types": ["full_attention"] * self.num_layers,
            "max_window_layers": self.num_layers,
            "tie_word_embeddings": False,
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
            "num_anchors": self.num_anchors,
            "enable_confidence_head": True,
            "confidence_head_with_markov": self.markov_rank > 0,
            "markov_rank": self.markov_rank,
            **markov,
        }

    @classmethod
    def from_hf(cls, raw: dict) -> DraftConfig:
        sizes = {name: raw[name] for name in ModelConfig.__slots__}
        return cls(
            target=ModelConfig(**sizes | {"num_hidden_layers": raw["num_target_layers"]}),
            mask_token_id=raw["mask_token_id"],
            num_layers=raw["num_hidden_layers"],
            block_size=raw["block_size"],
            markov_rank=raw["markov_rank"],
            num_anchors=raw["num_anchors"],
            target_layer_ids=tuple(raw["target_layer_ids"]),
        )


class MarkovHead(nn.Module):
    def __init__(self, vocab_size: int, rank: int) -> None:
        super().__init__()
        self.markov_w1 = nn.Embedding(vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, vocab_size, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.1)
        nn.init.zeros_(self.markov_w2.weight)


class ConfidenceHead(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.proj = nn.Linear(size, 1)


class Draft(nn.Module):
    def __init__(self, cfg: DraftConfig) -> None:
        super().__init__()
        self.cfg = cfg
        base = cfg.target
        hidden, vocab = base.hidden_size, base.vocab_size
        self.embed_tokens = nn.Embedding(vocab, hidden)
        self.lm_head = nn.Linear(hidden, vocab, bias=False)
        self.fc = nn.Linear(len(cfg.target_layer_ids) * hidden, hidden, bias=False)
        self.hidden_norm = RMSNorm(hidden, base.rms_norm_eps)
        self.layers = nn.ModuleList(Layer(base) for _ in range(cfg.num_layers))
        self.norm = RMSNorm(hidden, base.rms_norm_eps)
        self.markov_head = MarkovHead(vocab, cfg.markov_rank) if cfg.markov_rank else None
        self.confidence_head = ConfidenceHead(hidden + cfg.markov_rank)

    def share_target(self, target: Target) -> None:
        """Copy the target's embedding and head, and freeze both."""
        for module in (self.embed_tokens, self.lm_head):
            module.weight.data.copy_(target.model.embed_tokens.weight.data)
            module.weight.requires_grad_(False)

    def rope(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """positions [B, T] -> cos and sin [B, 1, T, D]."""
        base = self.cfg.target
        cos, sin = rope_table(positions[:, None], base.head_dim, base.rope_theta)
        return cos.to(dtype), sin.to(dtype)

    def context(self, features: Tensor) -> Tensor:
        """Captured target layers [B, S, m * H] -> [B, S, H]."""
        return self.hidden_norm(self.fc(features))

    def block_inputs(self, anchors: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Anchor tokens and their positions [B, N] -> embeddings [B, N * G, H], positions."""
        rows = torch.full((*anchors.shape, self.cfg.block_size), self.cfg.mask_token_id)
        rows[..., 0] = anchors
        row_positions = positions[..., None] + torch.arange(self.cfg.block_size)
        return self.embed_tokens(rows.flatten(1)), row_positions.flatten(1)

    def markov_features(self, previous: Tensor) -> Tensor:
        """W1 rows of the tokens before each draft: [...] -> [..., R]; R may be 0."""
        if self.markov_head is None:
            return torch.zeros(*previous.shape, 0)
        return self.markov_head.markov_w1(previous)

    def logits(self, hidden: Tensor, markov: Tensor) -> Tensor:
        """hidden [..., H] and W1 rows [..., R] -> corrected logits [..., V]."""
        base = self.lm_head(hidden)
        return base if self.markov_head is None else base + self.markov_head.markov_w2(markov)

    def confidence_logits(self, hidden: Tensor, markov: Tensor) -> Tensor:
        """[..., H] and [..., R] -> [...]."""
        features = torch.cat((hidden, markov.to(hidden.dtype)), dim=-1)
        return self.confidence_head.proj(features).squeeze(-1)

    def forward(self, features: Tensor, anchors: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """Every block of a window in one pass, for training.

        features [B, S, m * H], anchors and positions [B, N], mask [B, 1, N * G, S + N * G]
        -> hidden [B, N * G, H]
        """
        context = self.context(features)
        h, rows = self.block_inputs(anchors, positions)
        h = h.to(context.dtype)
        context_rope = self.rope(torch.arange(features.shape[1])[None], h.dtype)
        rope = self.rope(rows, h.dtype)
        for layer in self.layers:
            attn, x = layer.self_attn, layer.input_layernorm(h)
            context_k, context_v = attn.keys_values(context, context_rope)
            k, v = attn.keys_values(x, rope)
            k, v = torch.cat((context_k, k), dim=2), torch.cat((context_v, v), dim=2)
            h = h + attn.attend(attn.queries(x, rope), k, v, mask)
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        return self.norm(h)

    def extend_context(self, cache: KVCache, features: Tensor, positions: Tensor) -> None:
        """Write context keys and values of [B, T] positions into `cache`."""
        context = self.context(features)
        rope = self.rope(positions, context.dtype)
        for i, layer in enumerate(self.layers):
            cache.write(i, positions, *layer.self_attn.keys_values(context, rope))

    def block_hidden(self, cache: KVCache, anchors: Tensor, positions: Tensor) -> Tensor:
        """One block per request: anchors and positions [B] -> hidden [B, G, H]."""
        h, rows = self.block_inputs(anchors[:, None], positions[:, None])
        rope = self.rope(rows, h.dtype)
        length = max(int(positions.max()), 1)
        seen = torch.arange(length) < positions[:, None]  # [B, length]
        own = torch.ones(len(anchors), self.cfg.block_size, dtype=torch.bool)
        mask = torch.cat((seen, own), dim=1)[:, None, None]  # [B, 1, 1, length + G]
        mask = mask.expand(-1, -1, self.cfg.block_size, -1)
        for i, layer in enumerate(self.layers):
            attn, x = layer.self_attn, layer.input_layernorm(h)
            k, v = attn.keys_values(x, rope)
            context_k, context_v = cache.read(i, length)
            k, v = torch.cat((context_k, k), dim=2), torch.cat((context_v, v), dim=2)
            h = h + attn.attend(attn.queries(x, rope), k, v, mask)
            h = h + layer.mlp(layer.post_attention_layernorm(h))
        return self.norm(h)


def load_draft(folder: Path, dtype: torch.dtype = torch.float32) -> Draft:
    draft = Draft(DraftConfig.from_hf(json.loads((folder / "config.json").read_text())))
    draft.load_state_dict(load_file(folder / "model.safetensors"))
    return draft.to(dtype).eval()
