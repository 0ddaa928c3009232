"""A batch that no user sent: real forwards of a chosen shape, for timing before serving."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from sglang.srt.model_executor.forward_batch_info import ForwardMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from sglang_dspark.seam.records import AnchorState


class Stand:
    """Stands in for a batch or request of SGLang; a field that nobody set is None."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)

    def again(self) -> Stand:
        """A copy for one more step: a step changes its batch, and SGLang restores it."""
        return Stand(**self.__dict__)

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


@contextmanager
def timing_batch(runner: Any, contexts: Sequence[int], width: int) -> Iterator[Stand]:
    """A greedy batch of len(contexts) requests with that many committed tokens each.

    width: rows that a step may write behind them. Request rows are borrowed from the empty pool
    and cleared again; KV slots are scattered, as they are after serving for a while.

    Raises:
        ValueError: more requests or tokens than the pools hold.
    """
    pool, bs = runner.req_to_token_pool, len(contexts)
    table, num_slots = pool.req_to_token, runner.max_total_num_tokens
    longest = max(contexts) + width
    if bs >= table.shape[0] or longest > table.shape[1]:
        raise ValueError(f"{bs} requests of {longest} tokens do not fit the request table")
    rows = torch.arange(1, bs + 1, device=table.device)
    scattered = torch.from_numpy(np.random.default_rng(0).permutation(num_slots - 1) + 1)
    index = torch.arange(bs * longest) % (num_slots - 1)
    table[1 : bs + 1, :longest] = scattered[index].view(bs, longest).to(table)
    lens = torch.tensor(list(contexts), dtype=torch.int64)
    device_lens = lens.to(table.device)
    request = Stand(rid="timing", sampling_params=Stand(top_k=1))
    anchors = torch.full((bs,), 1, dtype=torch.int64, device=table.device)
    try:
        yield Stand(
            reqs=[request] * bs,
            forward_mode=ForwardMode.DECODE,
            spec_algorithm=SpeculativeAlgorithm.DSPARK,
            spec_info=AnchorState(bonus_tokens=anchors, new_seq_lens=device_lens),
            seq_lens=device_lens,
            seq_lens_cpu=lens,
            seq_lens_sum=int(lens.sum()),
            req_pool_indices=rows,
            req_pool_indices_cpu=rows.cpu(),
            req_to_token_pool=pool,
            sampling_info=Stand(
                is_all_greedy=True,
                top_ks=torch.ones(bs, dtype=torch.int32, device=table.device),
                temperatures=torch.ones(bs, 1, device=table.device),
                need_top_k_sampling=False,
                need_top_p_sampling=False,
                need_min_p_sampling=False,
            ),
            return_hidden_states_mode=0,
        )
    finally:
        table[1 : bs + 1, :longest] = 0
