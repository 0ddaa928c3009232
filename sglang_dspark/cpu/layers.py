"""Layer forwards with fewer torch operations than SGLang's native ones, where those are plain.

At a batch of a few rows a layer costs what its operations cost to dispatch (2-5 us each), not what
they compute. Each function here leaves every unusual form to the native one; `tests/cpu` holds the
two together. They are installed as the out-of-tree forwards of SGLang's fused operators.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu


def rms_norm_forward(
    self,
    x: Tensor,  # [rows, hidden_size]
    residual: Tensor | None = None,
    post_residual_addition: Tensor | None = None,
    quant_linear=None,
):
    """Normalised x, or (normalised x + residual, x + residual)."""
    weight = self.weight
    if (
        weight.dtype != x.dtype
        or post_residual_addition is not None
        or self.variance_size_override is not None
        or self.cast_x_before_out_mul
        or self.fp32_residual
    ):
        return self.forward_native(x, residual, post_residual_addition, quant_linear)
    if residual is None:
        return rms_norm(x, weight.shape, weight, self.variance_epsilon)
    x = x + residual
    return rms_norm(x, weight.shape, weight, self.variance_epsilon), x


def silu_and_mul_forward(self, x: Tensor) -> Tensor:
    """[..., 2 * width] gate and up -> [..., width]"""
    gate, up = x.chunk(2, dim=-1)
    return silu(gate).mul_(up)


def rotary_forward(
    self,
    positions: Tensor,
    query: Tensor,  # [rows, heads * head_size]
    key: Tensor,  # [rows, kv_heads * head_size]
    offsets: Tensor | None = None,
    fused_set_kv_buffer_arg=None,
):
    """Query and key are rotated together: x * (cos, cos) + halves of x swapped * (-sin, sin)."""
    size = self.head_size
    if (
        offsets is not None
        or fused_set_kv_buffer_arg is not None
        or not self.is_neox_style
        or self.rotary_dim != size
        or query.dim() != 2
    ):
        return self.forward_native(positions, query, key, offsets, fused_set_kv_buffer_arg)
    rows = query.shape[0]
    cos, sin = _rotary_table(self, query.dtype).index_select(0, positions).chunk(2, dim=-1)
    both = torch.cat((query, key), dim=-1).view(rows, -1, size)
    both = torch.addcmul(both * cos, both.roll(size // 2, dims=-1), sin)
    both = both.view(rows, -1)
    return both[:, : query.shape[1]], both[:, query.shape[1] :]


def _rotary_table(rotary, dtype: torch.dtype) -> Tensor:
    """[max_position, 1, 2 * head_size]: (cos, cos, -sin, sin), remade when the cache is."""
    source = rotary.cos_sin_cache
    made = rotary.__dict__.get("_dspark_table")
    if made is None or made[0] is not source or made[1].dtype != dtype:
        cos, sin = source.to(dtype).chunk(2, dim=-1)
        made = source, torch.cat((cos, cos, -sin, sin), dim=-1)[:, None]
        rotary.__dict__["_dspark_table"] = made
    return made[1]
