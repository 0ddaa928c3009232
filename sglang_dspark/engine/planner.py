"""How many drafts the next step verifies; without a cost table: the block, or none at all."""

from __future__ import annotations

from typing import Protocol

from sglang_dspark.settings import NoDraft


class Planner(Protocol):
    def should_draft(self) -> bool:
        """Whether the coming step drafts; called once per decode step."""


class AlwaysDraft:
    def should_draft(self) -> bool:
        return True


class NeverDraft:
    def should_draft(self) -> bool:
        return False


class Alternate:
    """`period` steps with drafts, `period` without, and so on."""

    def __init__(self, period: int) -> None:
        self._period = period
        self._step = -1

    def should_draft(self) -> bool:
        self._step += 1
        return self._step // self._period % 2 == 0


def build_planner(setting: NoDraft) -> Planner:
    """The planner that the settings file asks for."""
    match setting.mode:
        case "off":
            return AlwaysDraft()
        case "on":
            return NeverDraft()
        case "alternate":
            return Alternate(setting.period)
