"""How many drafts the next step drafts and verifies; without a cost table: the block, or none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from sglang_dspark.settings import NoDraft


@dataclass(frozen=True, slots=True)
class StepPlan:
    num_drafts: int  # drafted per request; 0: a no-draft step
    budget: int | None = None  # drafts verified over the batch; None: all of them


class Planner(Protocol):
    def plan(self) -> StepPlan:
        """The coming step; called once per decode step."""


class Fixed:
    """Every step alike."""

    def __init__(self, num_drafts: int) -> None:
        self._plan = StepPlan(num_drafts)

    def plan(self) -> StepPlan:
        return self._plan


class Alternate:
    """`period` steps with drafts, `period` without, and so on."""

    def __init__(self, num_drafts: int, period: int) -> None:
        self._kinds = (StepPlan(num_drafts), StepPlan(0))
        self._period = period
        self._step = -1

    def plan(self) -> StepPlan:
        self._step += 1
        return self._kinds[self._step // self._period % 2]


def build_planner(setting: NoDraft, gamma: int) -> Planner:
    """The planner that the settings file asks for."""
    match setting.mode:
        case "off":
            return Fixed(gamma)
        case "on":
            return Fixed(0)
        case "alternate":
            return Alternate(gamma, setting.period)
