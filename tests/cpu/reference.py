"""Plain per-request attention: the slow twin of `sglang_dspark.cpu.attention`."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Case:
    """One forward: a KV pool with every slot filled, and packed query rows."""

    q: Tensor  # [rows, heads, dim]
    k_pool: Tensor  # [slots, kv_heads, dim]
    v_pool: Tensor
    req_to_token: Tensor  # [max_reqs, max_context] int32
    req_indices: Tensor  # [num_reqs]
    kv_lens: list[int]
    row_counts: list[int]
    new_slots: Tensor  # [rows]

    def slots(self, req: int) -> Tensor:
        return self.req_to_token[self.req_indices[req], : self.kv_lens[req]].long()


def random_case(
    seed: int,
    *,
    contexts: list[int],  # KV positions before the new rows
    row_counts: list[int],
    heads: int = 4,
    kv_heads: int = 2,
    dim: int = 16,
    page: int = 1,
    dtype: torch.dtype = torch.float32,
) -> Case:
    """Slots scattered over the pool; unset slots hold NaN and stale table entries point there."""
    generator = torch.Generator().manual_seed(seed)
    shuffled = random.Random(seed)
    kv_lens = [context + rows for context, rows in zip(contexts, row_counts, strict=True)]
    pages = [-(-length // page) for length in kv_lens]
    num_pages = 2 * sum(pages) + 3
    slots = num_pages * page
    order = list(range(1, num_pages))
    shuffled.shuffle(order)
    max_reqs = len(contexts) + 3
    table = torch.full((max_reqs, max(kv_lens) + 8), slots - 1, dtype=torch.int32)
    rows_of_table = list(range(max_reqs))
    shuffled.shuffle(rows_of_table)
    req_indices = torch.tensor(rows_of_table[: len(contexts)])
    used = []
    new_slots = []
    for req, length in enumerate(kv_lens):
        mine = [order.pop() for _ in range(pages[req])]
        own = [p * page + offset for p in mine for offset in range(page)][:length]
        table[req_indices[req], :length] = torch.tensor(own, dtype=torch.int32)
        used += own
        new_slots += own[contexts[req] :]
    pools = []
    for _ in range(2):
        pool = torch.full((slots, kv_heads, dim), float("nan"), dtype=dtype)
        pool[used] = torch.randn(len(used), kv_heads, dim, generator=generator).to(dtype)
        pools.append(pool)
    q = torch.randn(sum(row_counts), heads, dim, generator=generator).to(dtype)
    return Case(
        q=q,
        k_pool=pools[0],
        v_pool=pools[1],
        req_to_token=table,
        req_indices=req_indices,
        kv_lens=kv_lens,
        row_counts=row_counts,
        new_slots=torch.tensor(new_slots),
    )


def attend_slowly(case: Case, *, causal: bool, window: int = -1) -> Tensor:
    """Row by row, head by head, in float64. [rows, heads, dim]"""
    out = torch.empty_like(case.q, dtype=torch.float64)
    heads, kv_heads, dim = case.q.shape[1], case.k_pool.shape[1], case.q.shape[2]
    row = 0
    for req, (length, count) in enumerate(zip(case.kv_lens, case.row_counts, strict=True)):
        k = case.k_pool[case.slots(req)].double()
        v = case.v_pool[case.slots(req)].double()
        for position in range(length - count, length):
            seen = [
                j
                for j in range(length)
                if (not causal or j <= position)
                and (window < 0 or j >= position - window)
                and (window < 0 or causal or j <= position + window)
            ]
            for head in range(heads):
                shared = head // (heads // kv_heads)
                scores = k[seen, shared] @ case.q[row, head].double() / math.sqrt(dim)
                out[row, head] = scores.softmax(0) @ v[seen, shared]
            row += 1
    return out
