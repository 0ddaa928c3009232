"""KV slots of a decode step: how many are reserved, where, and room for them in the row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.allocation import alloc_paged_token_slots_extend, alloc_token_slots
from sglang.srt.runtime_context import get_parallel, get_schedule, get_spec


def slots_per_step() -> int:
    """Slots kept ready past the committed length, in tokens.

    Twice the block and its anchor: under overlap scheduling the host knows the committed length
    one step late.
    """
    return 2 * int(get_spec().speculative_num_draft_tokens)


def row_headroom(original: Callable[[], int]) -> int:
    """AROUND `get_req_to_token_extra_context_len`: columns of a request's row past the context.

    SGLang widens the row by gamma + 5 at page size 1, less than a step may reserve; the write
    would land in the neighbour's row.
    """
    page = get_schedule().page_size * get_parallel().attn_dcp_size
    return max(original(), slots_per_step() + page - 1)


def reserve_slots(batch: Any) -> None:
    """Extend every request's KV allocation of `batch` to cover the coming step.

    Device and host lengths follow SGLang's contract for speculative batches: `seq_lens_cpu` holds
    the committed lengths, which overlap scheduling replaces by the published ones.
    """
    if batch.batch_size() == 0:
        return
    page = batch.token_to_kv_pool_allocator.page_size
    width = batch.req_to_token_pool.req_to_token.shape[1]
    held = np.array([req.kv.kv_allocated_len for req in batch.reqs], dtype=np.int64)  # [bs]
    committed = np.array([req.kv.kv_committed_len for req in batch.reqs], dtype=np.int64)
    wanted = -(-(committed + slots_per_step()) // page) * page
    wanted = np.maximum(held, np.minimum(wanted, width // page * page))
    _extend(batch, held, wanted)
    for req, length in zip(batch.reqs, wanted.tolist(), strict=True):
        req.kv.kv_allocated_len = length
        req.decode_batch_idx += 1
    batch.seq_lens_cpu = torch.from_numpy(committed)
    batch.seq_lens_sum = int(committed.sum())


def _extend(batch: Any, held: np.ndarray, wanted: np.ndarray) -> None:
    """Allocate slots for columns held..wanted-1 of each request's row and write them there."""
    missing = wanted - held  # [bs]
    total = int(missing.sum())
    if total == 0:
        return
    rows = np.repeat(batch.req_pool_indices_cpu.numpy(), missing)  # [total]
    starts = np.repeat(held - np.cumsum(missing) + missing, missing)
    columns = np.arange(total) + starts
    table = batch.req_to_token_pool.req_to_token  # [slots, width] int32
    if batch.token_to_kv_pool_allocator.page_size == 1:
        slots = alloc_token_slots(batch.tree_cache, total)
    else:
        slots = _allocate_pages(batch, held, wanted, total)
    index = torch.from_numpy(np.stack([rows, columns])).to(table.device, non_blocking=True)
    table[index[0], index[1]] = slots.to(table.dtype)


def _allocate_pages(batch: Any, held: np.ndarray, wanted: np.ndarray, total: int) -> torch.Tensor:
    held_cpu, wanted_cpu = torch.from_numpy(held), torch.from_numpy(wanted)
    table = batch.req_to_token_pool.req_to_token
    device = table.device
    # The allocator continues the page that the last held slot lies in.
    last_column = held_cpu.clamp(min=1).to(device) - 1
    last_slot = table[batch.req_pool_indices, last_column].to(torch.int64)
    return alloc_paged_token_slots_extend(
        batch.tree_cache,
        held_cpu.to(device),
        held_cpu,
        wanted_cpu.to(device),
        wanted_cpu,
        torch.where(held_cpu.to(device) > 0, last_slot, -1),
        total,
        req_pool_indices=batch.req_pool_indices,
        batch=batch,
    )
