"""Positions and KV slots of the rows that one step may write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """Row 0 is the anchor's. The draft block writes columns 0..gamma-1, the target all of them."""

    positions: Tensor  # [bs, width] int64, never past the last position of the context
    slots: Tensor  # [bs, width] int64 KV slots
    plan: Any  # SGLang's slot plan of this iteration


class WindowBuilder:
    """Builds the window of each step of one model runner."""

    def __init__(self, runner: Any, width: int) -> None:
        self._runner = runner
        self._offsets = torch.arange(width, device=runner.device)
        # A block may start at the last position; rows past it are never committed, but their
        # rotary embedding has to exist.
        self._last_position = runner.model_config.context_len - 1

    def build(self, batch: Any, width: int) -> Window:
        """The `width` rows behind every request's committed tokens (`batch.seq_lens` [bs])."""
        columns = batch.seq_lens.unsqueeze(1) + self._offsets[:width]
        table = self._runner.req_to_token_pool.req_to_token
        slots = table[batch.req_pool_indices.unsqueeze(1), columns].to(torch.int64)
        plan = self._runner.kv_index_translator.plan(
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            seq_lens_cpu=batch.seq_lens_cpu,
            write_virtual=slots.flatten(),
            read_extent=width,
        )
        return Window(columns.clamp(max=self._last_position), slots, plan)
