"""Prices of the steps that a planner can take, from a cost table (paper.md, "The scheduler").

    T(R, w, B, C) = draft(R, w) + verify(B, C) + rest(R, w)    a step that drafts w per request
    T(R, C)       = no_draft(R, C)                             plain decode, one row per request

Between measured sizes the price is linear. A size below the first one costs what the first one
does. Beyond the last one it rises, as steeply as the last segment or the whole curve, whichever
is more, else in proportion: more is never free. With captured tiers a batch costs what the tier
costs that it is padded up to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.cost_table import BlockCost, CostTable, Curve, Surface
from sglang_dspark.core.tiers import Tier, choose_tier, sort_tiers

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

_CACHED_BATCH_SIZES = 64  # padded sizes are kept for this many request counts


class StepCosts:
    """A cost table made ready for one server: dense in rows, padded to its tiers."""

    def __init__(
        self,
        table: CostTable,
        *,
        max_requests: int,
        gamma: int,
        tiers: Iterable[Tier] = (),
        round_rows: Callable[[int], int] | None = None,
    ) -> None:
        """max_requests, gamma: bounds of a batch; tiers: captured sizes, empty without graphs;
        round_rows: the rows that the target's products run at, for a number of rows given."""
        self.table = table
        self.tiers = sort_tiers(tiers)
        self._max_requests, self._gamma = max_requests, gamma
        max_rows = max([max_requests * (gamma + 1)] + [t.tokens for t in self.tiers])
        self._contexts = _extended_contexts(table.verify.contexts)
        self._run_rows = list(range(max_rows + 1))  # by rows given
        if round_rows is not None and not self.tiers:
            self._run_rows = [min(round_rows(rows), max_rows) for rows in self._run_rows]
        dense = _dense_surface(table.verify, max_rows)
        self._verify = dense[:, self._run_rows]  # [c', max_rows + 1]
        once = _dense_blocks(table.draft, gamma, max_requests)
        once += _dense_blocks(table.rest, gamma, max_requests)
        self._once: list[list[float]] = once.tolist()  # [gamma + 1][max_requests + 1] draft + rest
        self._no_draft: list[list[float]] | None = None  # [max_requests + 1][c']
        self._no_draft_contexts = self._contexts
        if table.no_draft is not None:
            self._no_draft = _dense_surface(table.no_draft, max_requests).T.tolist()
            self._no_draft_contexts = _extended_contexts(table.no_draft.contexts)
        self._tier_cost = {
            entry.tier: _with_beyond(table.verify.contexts, np.array(entry.ms))
            for entry in table.tiers
        }
        self._padded: dict[int, tuple[I64, F64]] = {}

    @property
    def prices_no_draft(self) -> bool:
        return self._no_draft is not None

    def drafting_ms(self, num_requests: int, context_tokens: int, width: int) -> F64:
        """[num_requests x width + 1] ms of a drafting step, by the drafts it verifies.

        width: drafts proposed per request, at most the gamma given at construction.
        """
        self._check(num_requests, width)
        last = num_requests * (width + 1) + 1
        if self.tiers:
            grid = self._padded_costs(num_requests)[1][:, : num_requests * width + 1]
        else:
            grid = self._verify[:, num_requests:last]
        i, share = _segment(self._contexts, context_tokens)
        once = self._once[width][num_requests]
        if not share:
            level: F64 = grid[i] + once
            return level
        step_ms: F64 = grid[i + 1] - grid[i]
        step_ms *= share
        step_ms += grid[i]
        step_ms += once
        return step_ms

    def once_ms(self, num_requests: int, width: int) -> float:
        """ms of what a drafting step does once: the draft of `width` per request, and the rest."""
        self._check(num_requests, width)
        return self._once[width][num_requests]

    def no_draft_ms(self, num_requests: int, context_tokens: int) -> float:
        """ms of a plain decode step; NaN where the table does not price it."""
        if self._no_draft is None:
            return float("nan")
        self._check(num_requests, 0)
        column = self._no_draft[num_requests]
        i, share = _segment(self._no_draft_contexts, context_tokens)
        return column[i] + share * (column[i + 1] - column[i]) if share else column[i]

    def num_rows(self, num_requests: int, budget: int) -> int:
        """Rows that a step with `budget` drafts runs: the captured size, or just its own rows."""
        if not self.tiers:
            return num_requests + budget
        self._check(num_requests, 0)
        return int(self._padded_costs(num_requests)[0][budget])

    def fill(self, num_requests: int, budget: int, most: int) -> tuple[int, int]:
        """(rows that the target runs, drafts): the budget raised to what its price includes.

        most: drafts that there are. Rows exceed requests + drafts in a captured size only.
        """
        if self.tiers:
            rows = self.num_rows(num_requests, budget)
            return rows, max(budget, min(rows - num_requests, most))
        filled = min(self._run_rows[num_requests + budget] - num_requests, most)
        return num_requests + max(filled, budget), max(filled, budget)

    def tier(self, num_requests: int, budget: int) -> Tier | None:
        """The captured size that a step with `budget` drafts is padded to; None: runs as it is."""
        return choose_tier(self.tiers, num_requests, num_requests + budget)

    def _check(self, num_requests: int, width: int) -> None:
        if not 1 <= num_requests <= self._max_requests or not 0 <= width <= self._gamma:
            raise ValueError(
                f"{num_requests} requests with {width} drafts each: this server prices "
                f"1..{self._max_requests} with gamma up to {self._gamma}"
            )

    def _padded_costs(self, num_requests: int) -> tuple[I64, F64]:
        """(rows run [n + 1], verify ms [c', n + 1]) by budget, n = num_requests x gamma."""
        found = self._padded.get(num_requests)
        if found is None:
            if len(self._padded) >= _CACHED_BATCH_SIZES:
                self._padded.pop(next(iter(self._padded)))
            found = self._padded[num_requests] = self._pad(num_requests)
        return found

    def _tier_ms(self, tier: Tier) -> F64:
        """[c'] verify ms of a captured size: as timed, else as its tokens cost in the table."""
        timed = self._tier_cost.get(tier)
        return self._verify[:, tier.tokens] if timed is None else timed

    def _pad(self, num_requests: int) -> tuple[I64, F64]:
        run: I64 = num_requests + np.arange(num_requests * self._gamma + 1)
        cost = self._verify[:, run]
        # From the largest tier down, so that the smallest one that serves a size is the last word.
        for tier in reversed(self.tiers):
            first = 0 if tier.serves(num_requests, num_requests) else len(run)
            last = tier.tokens - num_requests if tier.tokens > tier.slots else 0
            run[first : last + 1] = tier.tokens
            cost[:, first : last + 1] = self._tier_ms(tier)[:, None]
        return run, cost


def _beyond_slope(at: Sequence[int], ms: Sequence[float]) -> float:
    """ms per size past the last one: the last segment's, or the whole curve's if that is more."""
    if len(at) == 1:
        return 0.0
    last = (ms[-1] - ms[-2]) / (at[-1] - at[-2])
    whole = (ms[-1] - ms[0]) / (at[-1] - at[0])
    return max(last, whole)


def _dense_curve(curve: Curve, largest: int) -> F64:
    """[largest + 1] ms at every size."""
    sizes = np.arange(largest + 1)
    dense: F64 = np.interp(sizes, curve.at, curve.ms)
    slope = _beyond_slope(curve.at, curve.ms)
    if slope <= 0.0:
        slope = curve.ms[-1] / curve.at[-1]
    past = sizes > curve.at[-1]
    dense[past] = curve.ms[-1] + slope * (sizes[past] - curve.at[-1])
    return dense


def _dense_blocks(blocks: BlockCost, gamma: int, largest: int) -> F64:
    """[gamma + 1, largest + 1] ms at every width and number of requests.

    Between measured widths linear, outside them as at the nearest one.
    """
    columns = np.stack(
        [
            _dense_curve(Curve(blocks.at, tuple(row[w] for row in blocks.ms)), largest)
            for w in range(len(blocks.widths))
        ]
    )
    widths = np.arange(gamma + 1)
    dense = [np.interp(widths, blocks.widths, column) for column in columns.T]
    return np.array(dense).T


def _dense_surface(surface: Surface, largest: int) -> F64:
    """[c', largest + 1] ms at every size, the last of c' being a context past the measured ones."""
    columns = [
        _dense_curve(Curve(surface.at, tuple(row[c] for row in surface.ms)), largest)
        for c in range(len(surface.contexts))
    ]
    return _with_beyond(surface.contexts, np.stack(columns))


def _extended_contexts(contexts: Sequence[int]) -> tuple[int, ...]:
    """Measured contexts and, where there are two or more, one past the last of them."""
    return (*contexts, 2 * contexts[-1]) if len(contexts) > 1 else tuple(contexts)


def _with_beyond(contexts: Sequence[int], grid: F64) -> F64:
    """Append to grid [c, ...] the ms at twice the last context; never less than at the last."""
    if len(contexts) == 1:
        return grid
    last = (grid[-1] - grid[-2]) / (contexts[-1] - contexts[-2])
    whole = (grid[-1] - grid[0]) / (contexts[-1] - contexts[0])
    slope = np.maximum(np.maximum(last, whole), 0.0)
    return np.concatenate([grid, (grid[-1] + slope * contexts[-1])[None]])


def _segment(contexts: Sequence[int], context_tokens: int) -> tuple[int, float]:
    """(i, share): the price is that at context i plus `share` of the step to context i + 1.

    Below the first context share is 0; past the last one it is above 1.
    """
    if len(contexts) == 1 or context_tokens <= contexts[0]:
        return 0, 0.0
    i = min(bisect_right(contexts, context_tokens), len(contexts) - 1) - 1
    return i, (context_tokens - contexts[i]) / (contexts[i + 1] - contexts[i])
