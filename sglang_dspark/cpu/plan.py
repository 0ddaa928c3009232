"""Which rows attend to which KV slots: worked out once per forward, used by every layer.

A forward holds packed query rows, request after request. Row r of request i (r = 0..n_i-1) stands
at absolute position `kv_len_i - n_i + r`. Requests of like KV length form one `RowGroup`, which is
padded to [num_reqs, max_rows] x [num_reqs, max_kv] and attended in one call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Above this many rows, a request is a prefill: attended alone, in chunks of its own rows.
MAX_BATCHED_ROWS = 32
# A group is split when that saves this many padded KV positions per layer; one more group costs
# about 0.1 ms per layer, and a padded position of 2 x 64 KV floats about 0.1 us (Xeon, 1 thread).
MIN_PADDING_SAVED = 2048
# Or when it saves this many padded rows x KV positions: one of them costs about 12 ns per layer.
MIN_ROWS_SAVED = 12_000

MaskKey = tuple[bool, int, int, torch.dtype]


@dataclass(frozen=True, slots=True)
class RowGroup:
    """Requests attended together. Every request has at least one row and one KV position."""

    kv_slots: Tensor  # [num_reqs, max_kv] int; a request's padding repeats its first slot
    kv_lens: Tensor  # [num_reqs] int64, the request's own rows included
    row_counts: Tensor  # [num_reqs] int64
    max_rows: int
    kv_start: int | None  # first slot, where one request's slots are consecutive
    padded_from: Tensor | None  # [num_reqs * max_rows] packed row to put there; None: as they are
    packed_rows: Tensor | None  # [rows] packed rows of this group; None: all of the forward
    packed_from: Tensor | None  # [rows] padded row of each packed row; None: as they are
    masks: dict[MaskKey, Tensor | None] = field(default_factory=dict)

    @property
    def num_reqs(self) -> int:
        return self.kv_slots.shape[0]

    @property
    def max_kv(self) -> int:
        return self.kv_slots.shape[1]

    def mask(
        self, *, causal: bool, window: int, heads_per_kv: int, dtype: torch.dtype
    ) -> Tensor | None:
        """Additive [num_reqs, 1, max_rows * heads_per_kv, max_kv], or None where all is visible.

        window: how many positions before a row (and, not causal, after it) it sees; -1 for all.
        """
        key = (causal, window, heads_per_kv, dtype)
        if key not in self.masks:
            self.masks[key] = self._build_mask(*key)
        return self.masks[key]

    def _build_mask(
        self, causal: bool, window: int, heads_per_kv: int, dtype: torch.dtype
    ) -> Tensor | None:
        allowed = visible(
            kv_lens=self.kv_lens,
            row_counts=self.row_counts,
            max_rows=self.max_rows,
            max_kv=self.max_kv,
            causal=causal,
            window=window,
        )
        if bool(allowed.all()):
            return None
        return additive(allowed, heads_per_kv, dtype)


def visible(
    *, kv_lens: Tensor, row_counts: Tensor, max_rows: int, max_kv: int, causal: bool, window: int
) -> Tensor:
    """[num_reqs, max_rows, max_kv] bool; a padding row repeats the request's last row."""
    rows = torch.arange(max_rows).minimum(row_counts[:, None] - 1)
    positions = (kv_lens - row_counts)[:, None] + rows  # [num_reqs, max_rows]
    kv = torch.arange(max_kv)
    if causal:
        allowed = kv <= positions[:, :, None]
    else:
        allowed = (kv < kv_lens[:, None])[:, None, :].expand(-1, max_rows, -1)
    if window >= 0:
        allowed = allowed & (kv >= positions[:, :, None] - window)
        if not causal:
            allowed = allowed & (kv <= positions[:, :, None] + window)
    return allowed


def additive(allowed: Tensor, heads_per_kv: int, dtype: torch.dtype) -> Tensor:
    """Bool [num_reqs, rows, kv] -> 0 / -inf [num_reqs, 1, rows * heads_per_kv, kv]."""
    num_reqs, rows, kv = allowed.shape
    mask = torch.zeros(num_reqs, rows, 1, kv, dtype=dtype)
    mask.masked_fill_(~allowed[:, :, None, :], float("-inf"))
    folded = mask.expand(-1, -1, heads_per_kv, -1).reshape(num_reqs, rows * heads_per_kv, kv)
    return folded[:, None]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One forward's groups. Together they hold each packed row exactly once."""

    num_rows: int
    groups: tuple[RowGroup, ...]


def build_plan(
    *,
    req_to_token: Tensor,  # [max_reqs, max_context] int32
    req_indices: Tensor,  # [num_reqs] rows of req_to_token
    kv_lens: Sequence[int],  # [num_reqs], new rows included
    row_counts: Sequence[int],  # [num_reqs], at least 1 each
    new_slots: Tensor | None,  # [num_rows] where the new rows' KV is; None: req_to_token knows
    max_gathered: int,  # KV positions one group may gather
) -> AttentionPlan:
    starts = _exclusive_sums(row_counts)
    members = tuple(
        part
        for group in _group_members(kv_lens, row_counts, max_gathered)
        for part in _split_by_rows(group, kv_lens, row_counts)
    )
    sole = len(members) == 1
    groups = []
    for group in members:
        whole = sole and group == list(range(len(kv_lens)))
        lens = [kv_lens[i] for i in group]
        counts = [row_counts[i] for i in group]
        first_rows = [starts[i] for i in group]
        reqs = req_indices if whole else req_indices[torch.tensor(group)]
        slots = _kv_slots(req_to_token, reqs, lens, counts, first_rows, new_slots)
        groups.append(_row_group(slots, lens, counts, first_rows, whole))
    return AttentionPlan(num_rows=sum(row_counts), groups=tuple(groups))


def _row_group(
    slots: Tensor, lens: list[int], counts: list[int], first_rows: list[int], whole: bool
) -> RowGroup:
    max_rows = max(counts)
    uniform = min(counts) == max_rows
    kv_lens, row_counts = torch.tensor(lens), torch.tensor(counts)
    padded_from = packed_rows = packed_from = None
    if not (whole and uniform):
        rows = torch.arange(max_rows).minimum(row_counts[:, None] - 1)
        padded_from = (torch.tensor(first_rows)[:, None] + rows).flatten()
    if not uniform:
        real = torch.arange(max_rows) < row_counts[:, None]
        packed_from = real.flatten().nonzero().flatten()
    if not whole:
        packed_rows = padded_from if uniform else padded_from[packed_from]
    return RowGroup(
        kv_slots=slots,
        kv_lens=kv_lens,
        row_counts=row_counts,
        max_rows=max_rows,
        kv_start=_consecutive_start(slots),
        padded_from=padded_from,
        packed_rows=packed_rows,
        packed_from=packed_from,
    )


def _group_members(
    kv_lens: Sequence[int], row_counts: Sequence[int], max_gathered: int
) -> Iterator[list[int]]:
    """Request indices of each group, each list ascending."""
    batched = [i for i, rows in enumerate(row_counts) if rows <= MAX_BATCHED_ROWS]
    yield from ([i] for i, rows in enumerate(row_counts) if rows > MAX_BATCHED_ROWS)
    batched.sort(key=lambda i: -kv_lens[i])
    group: list[int] = []
    for taken, i in enumerate(batched):
        if group:
            longest = kv_lens[group[0]]
            saved = (len(batched) - taken) * (longest - kv_lens[i])
            unlike = saved >= MIN_PADDING_SAVED and 2 * kv_lens[i] < longest
            if unlike or (len(group) + 1) * longest > max_gathered:
                yield sorted(group)
                group = []
        group.append(i)
    if group:
        yield sorted(group)


def _split_by_rows(
    group: list[int], kv_lens: Sequence[int], row_counts: Sequence[int]
) -> Iterator[list[int]]:
    """The group, or its short windows and its long ones: all are padded to the longest."""
    counts = Counter(row_counts[i] for i in group)
    longest, most = max(kv_lens[i] for i in group), max(counts)
    best, cut, shorter = MIN_ROWS_SAVED, 0, 0
    for rows in sorted(counts):
        shorter += counts[rows]
        saved = shorter * (most - rows) * longest
        if saved > best:
            best, cut = saved, rows
    if cut:
        yield [i for i in group if row_counts[i] <= cut]
    yield [i for i in group if row_counts[i] > cut]


def _kv_slots(
    req_to_token: Tensor,
    reqs: Tensor,
    lens: list[int],
    counts: list[int],
    first_rows: list[int],
    new_slots: Tensor | None,
) -> Tensor:
    """[len(reqs), max(lens)]; padding repeats the request's first slot, whose KV is always set."""
    max_kv = max(lens)
    width = min(max_kv, req_to_token.shape[1])  # new rows may stand past the row's end
    slots = req_to_token.narrow(1, 0, width).index_select(0, reqs).long()
    if width < max_kv:
        slots = torch.nn.functional.pad(slots, (0, max_kv - width))
    if new_slots is not None:
        flat: list[int] = []
        packed: list[int] = []
        for row, (length, count, first) in enumerate(zip(lens, counts, first_rows, strict=True)):
            end = row * max_kv + length
            flat.extend(range(end - count, end))
            packed.extend(range(first, first + count))
        slots.view(-1).index_copy_(0, torch.tensor(flat), new_slots[torch.tensor(packed)].long())
    if min(lens) < max_kv:
        padding = torch.arange(max_kv) >= torch.tensor(lens)[:, None]
        slots = torch.where(padding, slots[:, :1], slots)
    return slots


def _consecutive_start(slots: Tensor) -> int | None:
    """First slot, where these are one request's slots and they follow one another in the pool."""
    if slots.shape[0] > 1:
        return None
    first = int(slots[0, 0])
    if int(slots[0, -1]) - first != slots.shape[1] - 1:
        return None
    run = torch.arange(first, first + slots.shape[1])
    return first if torch.equal(slots[0], run) else None


def _exclusive_sums(counts: Sequence[int]) -> list[int]:
    starts, total = [], 0
    for count in counts:
        starts.append(total)
        total += count
    return starts
