"""Window lengths -> packed rows: each request's anchor row, then its drafts, front to back.

The twin of `ops/layout.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class RowLayout:
    cu_seqlens: tuple[int, ...]  # [bs + 1], first row of each request; the last is the real total
    rows: tuple[tuple[int, int], ...]  # [num_rows] (request, row of its block); row 0 = anchor
    num_real: int  # rows from here on are padding and stand for the last request's anchor


def row_layout(draft_lens: Sequence[int], num_rows: int) -> RowLayout:
    """Pack windows of draft_lens[r] drafts into num_rows rows, padded at the end."""
    cu_seqlens = tuple(accumulate((1 + length for length in draft_lens), initial=0))
    padding = num_rows - cu_seqlens[-1]
    if padding < 0:
        raise ValueError(f"{cu_seqlens[-1]} rows do not fit in {num_rows}")
    rows = [(r, k) for r, length in enumerate(draft_lens) for k in range(1 + length)]
    rows += [(len(draft_lens) - 1, 0)] * padding
    return RowLayout(cu_seqlens, tuple(rows), cu_seqlens[-1])
