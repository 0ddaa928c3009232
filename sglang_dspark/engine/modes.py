"""The verify modes (paper.md): which drafts are verified, and how their rows reach the target."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from sglang_dspark.ops.allocate import allocate
from sglang_dspark.ops.layout import RowLayout, row_layout


@dataclass(frozen=True, slots=True)
class Choice:
    """How far each request is verified, and which rows the target runs for it."""

    draft_lens: Tensor | None  # [bs] int64 windows; None: every draft
    layout: RowLayout | None  # packed rows; None: all rows of every request


class VerifyMode(Protocol):
    name: ClassVar[str]
    schedules: ClassVar[bool]  # whether confidences and a budget decide the windows

    def choose(self, survival: Tensor | None, budget: int | None) -> Choice:
        """survival [bs, g] of the current block, where `schedules`; budget in drafts, None = all."""


class Static:
    """The whole block is verified and judged."""

    name = "static"
    schedules = False

    def choose(self, survival: Tensor | None, budget: int | None) -> Choice:
        return Choice(None, None)


class CapAccept:
    """The whole block is verified, and judged by compact's windows: cut first, then decide."""

    name = "cap-accept"
    schedules = True

    def choose(self, survival: Tensor | None, budget: int | None) -> Choice:
        if survival is None or budget is None:
            return Choice(None, None)
        return Choice(allocate(survival, budget), None)


class Compact:
    """Only the windows are verified, packed front to back."""

    name = "compact"
    schedules = True

    def choose(self, survival: Tensor | None, budget: int | None) -> Choice:
        if survival is None or budget is None:
            return Choice(None, None)
        bs, num_drafts = survival.shape
        draft_lens = allocate(survival, budget)
        # The budget is always used up, so the host knows the number of rows.
        num_rows = bs + max(0, min(budget, bs * num_drafts))
        return Choice(draft_lens, row_layout(draft_lens, num_rows))


MODES: dict[str, type[VerifyMode]] = {mode.name: mode for mode in (Static, CapAccept, Compact)}
