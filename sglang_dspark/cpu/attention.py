"""Grouped-query attention of packed rows over a slot-indexed KV pool, from an `AttentionPlan`.

Query heads that share a KV head become extra rows (grouped-query attention without repeating KV),
so that one `scaled_dot_product_attention` call serves a whole group of requests.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from sglang_dspark.cpu.plan import MAX_BATCHED_ROWS, AttentionPlan, RowGroup, additive

# Rows of a prefill attended at once; bounds its mask to PREFILL_ROWS x heads_per_kv x KV length.
PREFILL_ROWS = 128


def attend(
    q: Tensor,  # [rows, heads, head_dim]
    k_pool: Tensor,  # [slots, kv_heads, head_dim]
    v_pool: Tensor,  # [slots, kv_heads, head_dim]
    plan: AttentionPlan,
    *,
    causal: bool,  # False: a row sees all its request's KV, later rows of its block included
    window: int,  # see RowGroup.mask
    scale: float,
) -> Tensor:
    """[rows, heads, head_dim]"""
    out = torch.empty_like(q) if len(plan.groups) > 1 else q
    for group in plan.groups:
        k, v = _gather(k_pool, group, q.dtype), _gather(v_pool, group, q.dtype)
        rows = q if group.padded_from is None else q.index_select(0, group.padded_from)
        if group.max_rows > MAX_BATCHED_ROWS:
            done = _attend_long(rows, k, v, group, causal=causal, window=window, scale=scale)
        else:
            done = _attend_padded(rows, k, v, group, causal=causal, window=window, scale=scale)
        if group.packed_from is not None:
            done = done.index_select(0, group.packed_from)
        if group.packed_rows is None:
            return done
        out.index_copy_(0, group.packed_rows, done)
    return out


def _gather(pool: Tensor, group: RowGroup, dtype: torch.dtype) -> Tensor:
    """[num_reqs, kv_heads, max_kv, head_dim] view; no copy where one request's slots are a run."""
    if group.kv_start is not None:
        kv = pool.narrow(0, group.kv_start, group.max_kv)
    else:
        kv = pool.index_select(0, group.kv_slots.view(-1))
    if kv.dtype != dtype:
        kv = kv.to(dtype)
    return kv.view(group.num_reqs, group.max_kv, *pool.shape[1:]).transpose(1, 2)


def _fold(q: Tensor, num_reqs: int, kv_heads: int) -> Tensor:
    """[num_reqs * rows, heads, dim] -> [num_reqs, kv_heads, rows * heads_per_kv, dim]."""
    _, heads, dim = q.shape
    group = heads // kv_heads
    folded = q.view(num_reqs, -1, kv_heads, group, dim).transpose(1, 2)
    return folded.reshape(num_reqs, kv_heads, -1, dim)


def _unfold(out: Tensor, heads: int) -> Tensor:
    """The inverse of `_fold`, on its result's layout."""
    num_reqs, kv_heads, folded, dim = out.shape
    group = heads // kv_heads
    rows = out.view(num_reqs, kv_heads, folded // group, group, dim).transpose(1, 2)
    return rows.reshape(-1, heads, dim)


def _attend_padded(
    q: Tensor, k: Tensor, v: Tensor, group: RowGroup, *, causal: bool, window: int, scale: float
) -> Tensor:
    """q, result: [num_reqs * max_rows, heads, dim]."""
    heads, kv_heads = q.shape[1], k.shape[1]
    mask = group.mask(causal=causal, window=window, heads_per_kv=heads // kv_heads, dtype=q.dtype)
    out = scaled_dot_product_attention(
        _fold(q, group.num_reqs, kv_heads), k, v, attn_mask=mask, scale=scale
    )
    return _unfold(out, heads)


def _attend_long(
    q: Tensor, k: Tensor, v: Tensor, group: RowGroup, *, causal: bool, window: int, scale: float
) -> Tensor:
    """One request with many rows, a chunk of rows at a time, each over the KV it may see."""
    heads, kv_heads = q.shape[1], k.shape[1]
    rows, kv_len = group.max_rows, group.max_kv
    out = torch.empty_like(q)
    for start in range(0, rows, PREFILL_ROWS):
        end = min(start + PREFILL_ROWS, rows)
        last = kv_len - rows + end if causal else kv_len
        mask = None
        if causal or window >= 0:
            mask = _chunk_mask(kv_len, rows, start, end, last, causal, window)
            mask = additive(mask[None], heads // kv_heads, q.dtype)
        chunk = scaled_dot_product_attention(
            _fold(q[start:end], 1, kv_heads),
            k[:, :, :last],
            v[:, :, :last],
            attn_mask=mask,
            scale=scale,
        )
        out[start:end] = _unfold(chunk, heads)
    return out


def _chunk_mask(
    kv_len: int, rows: int, start: int, end: int, last: int, causal: bool, window: int
) -> Tensor:
    """[end - start, last] bool for rows start..end of a request that has `rows` new rows."""
    positions = torch.arange(kv_len - rows + start, kv_len - rows + end)[:, None]
    kv = torch.arange(last)
    allowed = kv <= positions if causal else torch.ones(end - start, last, dtype=torch.bool)
    if window >= 0:
        allowed = allowed & (kv >= positions - window)
        if not causal:
            allowed = allowed & (kv <= positions + window)
    return allowed
