"""A plain-torch Qwen3 target, with the parameter names of Hugging Face's Qwen3ForCausalLM.

Shapes: B sequences, T new tokens, S cached tokens, H hidden, D head_dim, V vocabulary.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class ModelConfig:
    vocab_size: int = 4096
    hidden_size: int = 256
    intermediate_size: int = 576
    num_hidden_layers: int = 12
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    max_position_embeddings: int = 8192
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10_000.0

    def to_hf(self, eos_token_id: int) -> dict:
        """config.json of a Qwen3 checkpoint."""
        fields = asdict(self)
        theta = fields.pop("rope_theta")
        return {
            "architectures": ["Qwen3ForCausalLM"],
            "model_type": "qwen3",
            **fields,
            "rope_theta": theta,
            "rope_parameters": {"rope_theta": theta, "rope_type": "default"},
            "rope_scaling": None,
            "hidden_act": "silu",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "layer_types": ["full_attention"] * self.num_hidden_layers,
            "max_window_layers": self.num_hidden_layers,
            "sliding_window": None,
            "use_sliding_window": False,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": None,
            "eos_token_id": eos_token_id,
            "pad_token_id": eos_token_id,
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
        }

    @classmethod
    def from_hf(cls, raw: dict) -> ModelConfig:
        return cls(**{name: raw[name] for name in cls.__slots__})


def rope_table(positions: Tensor, head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """cos, sin: positions [..., T] -> [..., T, D], rotate-half layout."""
    inverse = theta ** (-torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    angles = positions[..., None].float() * inverse
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply RoPE to x [B, heads, T, D]; rope entries broadcast against it."""
    cos, sin = rope
    first, second = x.chunk(2, dim=-1)
    return (x * cos + torch.cat((-second, first), dim=-1) * sin).to(x.dtype)


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.weight.to(x.dtype), self.eps)


class Attention(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.head_dim = cfg.head_dim
        q_size = cfg.num_attention_heads * cfg.head_dim
        kv_size = cfg.num_key_value_heads * cfg.head_dim
        self.q_proj = nn.Linear(cfg.hidden_size, q_size, bias=False)
        self.k_proj = nn.Linear(cfg.hidden_size, kv_size, bias=False)
        self.v_proj = nn.Linear(cfg.hidden_size, kv_size, bias=False)
        self.o_proj = nn.Linear(q_size, cfg.hidden_size, bias=False)
        self.q_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)
        self.k_norm = RMSNorm(cfg.head_dim, cfg.rms_norm_eps)

    def heads(self, x: Tensor) -> Tensor:
        """[B, T, heads * D] -> [B, heads, T, D]."""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def queries(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
        return rotate(self.q_norm(self.heads(self.q_proj(x))), rope)

    def keys_values(self, x: Tensor, rope: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return rotate(self.k_norm(self.heads(self.k_proj(x))), rope), self.heads(self.v_proj(x))

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
    ) -> Tensor:
        """q [B, nh, T, D], k and v [B, nkv, S, D] -> [B, T, H]."""
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.up_proj = nn.Linear(cfg.hidden_size, cfg.intermediate_size, bias=False)
        self.down_proj = nn.Linear(cfg.intermediate_size, cfg.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Weights of one Qwen3 block; target and draft wire its attention differently."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.self_attn = Attention(cfg)
        self.post_attention_layernorm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)
        self.mlp = MLP(cfg)


class KVCache:
    """Keys and values by position; a stale entry lies past every valid query's position."""

    def __init__(self, model: nn.Module, cfg: ModelConfig, batch: int, capacity: int) -> None:
        dtype = model.norm.weight.dtype
        shape = (len(model.layers), 2, batch, capacity, cfg.num_key_value_heads, cfg.head_dim)
        self.kv = torch.zeros(shape, dtype=dtype)
        self.rows = torch.arange(batch)[:, None]

    def write(self, layer: int, positions: Tensor, k: Tensor, v: Tensor) -> None:
        """positions [B, T]; k and v [B, nkv, T, D]."""
        self.kv[layer, 0, self.rows, positions] = k.transpose(1, 2).to(self.kv.dtype)
        self.kv[layer, 1, self.rows, positions] = v.transpose(1, 2).to(self.kv.dtype)

    def read(self, layer: int, length: int) -> tuple[Tensor, Tensor]:
        """Two of [B, nkv, length, D]."""
        k, v = self.kv[layer, :, :, :length].transpose(2, 3)
        return k, v


class Decoder(nn.Module):
    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(cfg.vocab_size, cfg.hidden_size)
        self.layers = nn.ModuleList(Layer(cfg) for _ in range(cfg.num_hidden_layers))
        self.norm = RMSNorm(cfg.hidden_size, cfg.rms_norm_eps)


class Target(nn.Module):
    """Qwen3 with tied embeddings. `forward` also returns the raw outputs of chosen layers."""

    def __init__(self, cfg: ModelConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.model = Decoder(cfg)

    def forward(
        self,
        ids: Tensor,
        capture: tuple[int, ...] = (),
        cache: KVCache | None = None,
        positions: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """ids [B, T] -> final hidden [B, T, H] and captured layer outputs [B, T, m * H].

        Without a cache the rows are a plain causal sequence. With one, `positions` [B, T] says
        where each row stands, and it sees every cached position up to its own.
        """
        h = self.model.embed_tokens(ids)
        if torch.is_autocast_enabled("cpu"):
            h = h.to(torch.get_autocast_dtype("cpu"))
        if positions is None:
            positions = torch.arange(ids.shape[1])[None]
        cos, sin = rope_table(positions[:, None], self.cfg.head_dim, self.cfg.rope_theta)
        rope = (cos.to(h.dtype), sin.to(h.dtype))
        length, mask = 0, None
        if cache:
            length = int(positions.max()) + 1
            mask = torch.arange(length) <= positions[:, None, :, None]  # [B, 1, T, length]
        captured = []
        for i, layer in enumerate(self.model.layers):
            attn, x = layer.self_attn, layer.input_layernorm(h)
            q, (k, v) = attn.queries(x, rope), attn.keys_values(x, rope)
            if cache:
                cache.write(i, positions, k, v)
                k, v = cache.read(i, length)
            h = h + attn.attend(q, k, v, mask, causal=mask is None)
            h = h + layer.mlp(layer.post_attention_layernorm(h))
            if i in capture:
                captured.append(h)
        return self.model.norm(h), torch.cat(captured, dim=-1) if captured else None

    def logits(self, hidden: Tensor) -> Tensor:
        """[..., H] -> [..., V] with the tied head."""
        return F.linear(hidden, self.model.embed_tokens.weight)


def load_target(folder: Path, dtype: torch.dtype = torch.float32) -> Target:
    target = Target(ModelConfig.from_hf(json.loads((folder / "config.json").read_text())))
    target.load_state_dict(load_file(folder / "model.safetensors"))
    return target.to(dtype).eval()


def save_model(weights: dict[str, Tensor], config: dict, folder: Path) -> None:
    """bf16 model.safetensors and config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: w.detach().to(torch.bfloat16).contiguous() for name, w in weights.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
