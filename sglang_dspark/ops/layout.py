"""Window lengths -> packed rows, on the device. Twin: `core/layout.py`.

Request r owns 1 + l_r rows, its anchor first; requests follow each other. The number of rows is
given by the host (planned, or padded up to a captured size), so nothing is read back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Where each packed row comes from. Rows past cu_seqlens[-1] are padding."""

    cu_seqlens: Tensor  # [bs + 1] int64, first row of each request; the last is the real total
    request: Tensor  # [num_rows] int64; padding names the last request
    row: Tensor  # [num_rows] int64, 0 = anchor; padding names row 0
    is_real: Tensor  # [num_rows] bool

    @property
    def row_start(self) -> Tensor:
        return self.cu_seqlens[:-1]


def row_layout(draft_lens: Tensor, num_rows: int) -> RowLayout:
    """draft_lens [bs] int64 in 0..gamma; num_rows >= sum(1 + draft_lens), known on the host."""
    bs = draft_lens.shape[0]
    cu_seqlens = torch.zeros(bs + 1, dtype=torch.int64, device=draft_lens.device)
    torch.cumsum(draft_lens + 1, 0, out=cu_seqlens[1:])
    index = torch.arange(num_rows, device=draft_lens.device)
    is_real = index < cu_seqlens[-1]
    request = torch.searchsorted(cu_seqlens[1:], index, right=True).clamp_(max=bs - 1)
    row = (index - cu_seqlens[request]) * is_real
    return RowLayout(cu_seqlens, request, row, is_real)


def full_layout(bs: int, gamma: int, device: torch.device | str) -> RowLayout:
    """Every request has the whole block: packed rows are the dense ones, reshaped."""
    width = gamma + 1
    index = torch.arange(bs * width, device=device)
    return RowLayout(
        cu_seqlens=torch.arange(bs + 1, device=device) * width,
        request=index // width,
        row=index % width,
        is_real=torch.ones(bs * width, dtype=torch.bool, device=device),
    )


def pack(dense: Tensor, layout: RowLayout) -> Tensor:
    """[bs, gamma + 1, ...] -> [num_rows, ...]; padding repeats the last request's anchor row."""
    return dense[layout.request, layout.row]


def unpack(rows: Tensor, layout: RowLayout, width: int) -> Tensor:
    """[num_rows, ...] -> [bs, width, ...]; past its window a request repeats its last row."""
    steps = torch.arange(width, device=rows.device)
    start, end = layout.cu_seqlens[:-1].unsqueeze(1), layout.cu_seqlens[1:].unsqueeze(1)
    return rows[torch.minimum(start + steps, end - 1)]
