"""The verify modes (paper.md): which drafts are verified, and how their rows reach the target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from sglang_dspark.engine.rules import Rule, Verified
from sglang_dspark.ops.layout import RowLayout, row_layout
from sglang_dspark.ops.markov import DraftBlock

VARIABLE = "SGLANG_RAGGED_VERIFY_MODE"  # SGLang's own


@dataclass(frozen=True, slots=True)
class Choice:
    """How far each request is verified, and which rows the target runs for it."""

    draft_lens: Tensor | None  # [bs] int64 windows; None: every draft
    layout: RowLayout | None  # packed rows; None: all rows of every request


WHOLE_BLOCK = Choice(None, None)


class VerifyMode(Protocol):
    name: ClassVar[str]
    schedules: ClassVar[bool]  # whether confidences and a budget decide the windows
    packs: ClassVar[bool]  # whether only the windows are verified

    def layout(self, draft_lens: Tensor, num_rows: int) -> RowLayout | None:
        """The rows that the target runs for windows [bs]; num_rows as planned on the host."""

    def ceiling(self, rule: Rule, block: DraftBlock, logits: Tensor) -> Tensor | None:
        """[bs] drafts that the whole block would have committed, where all rows were verified
        and the window may have cut some off."""


class Static:
    """The whole block is verified and judged."""

    name = "static"
    schedules = False
    packs = False

    def layout(self, draft_lens: Tensor, num_rows: int) -> None:
        return None

    def ceiling(self, rule: Rule, block: DraftBlock, logits: Tensor) -> None:
        return None


class CapAccept:
    """The whole block is verified, and judged by compact's windows: cut first, then decide."""

    name = "cap-accept"
    schedules = True
    packs = False

    def layout(self, draft_lens: Tensor, num_rows: int) -> None:
        return None

    def ceiling(self, rule: Rule, block: DraftBlock, logits: Tensor) -> Tensor:
        # The same noise as the committed decision: this is what the window cut off.
        return rule.accept(block, Verified(logits, None, None)).accepted


class Compact:
    """Only the windows are verified, packed front to back."""

    name = "compact"
    schedules = True
    packs = True

    def layout(self, draft_lens: Tensor, num_rows: int) -> RowLayout:
        return row_layout(draft_lens, num_rows)

    def ceiling(self, rule: Rule, block: DraftBlock, logits: Tensor) -> None:
        return None


MODES: dict[str, type[VerifyMode]] = {mode.name: mode for mode in (Static, CapAccept, Compact)}


def starting_mode(
    environment: Mapping[str, str], *, has_confidence: bool, captures_graphs: bool, tables: bool
) -> tuple[str, str]:
    """The mode that a server starts in, and why. tables: cost tables are not switched off."""
    if named := environment.get(VARIABLE):
        return named, f"as {VARIABLE} says"
    if not has_confidence:
        return Static.name, "the draft has no confidence head"
    if captures_graphs:
        return Static.name, "decode graphs are captured; --disable-cuda-graph allows compact"
    if not tables:
        return Static.name, "cost_table = off"
    return Compact.name, "confidence head and cost table"
