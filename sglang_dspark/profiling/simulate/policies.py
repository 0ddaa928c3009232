"""Policies by name, planned by the same code as in the engine."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.allocate import allocate
from sglang_dspark.core.arms import ArmRules
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.feedback import AcceptanceFeedback
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import Batch, Pin
from sglang_dspark.core.planner import (
    NeverDraft,
    Outlook,
    Pinned,
    Planner,
    Searching,
    Synchronous,
    VerifyAll,
)
from sglang_dspark.core.relay import ConfidenceRelay
from sglang_dspark.core.widths import WidthRules

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]

KINDS = "compact, static-<gamma>, no-draft, pinned-<drafts or share>, algorithm-1, oracle"
_STATIC, _PINNED = re.compile(r"static-(\d+)"), re.compile(r"pinned-(\d+|0?\.\d+|1\.0*)")


class PolicyError(ValueError):
    """No such policy, or the trace or table does not hold what it needs."""


class Blocks(NamedTuple):
    """What a step drafts, and what only an oracle knows beforehand."""

    survival: F32  # [bs, gamma]
    worth: I64  # [bs] drafts of each block that would be accepted and are of use
    num_counted: int  # requests whose next token is of use: those that have not ended


class Prices(NamedTuple):
    """Whole steps of this batch, the engine's own time included."""

    drafting_ms: Callable[[int], F64]  # width -> [bs x width + 1] by budget
    no_draft_ms: float  # NaN where the table does not say


class Windows(NamedTuple):
    """A drafting step, decided."""

    width: int  # drafts proposed per request
    draft_lens: I64  # [bs]


class Decider(Protocol):
    """A policy at work on one server."""

    gamma: int  # gamma limit

    def decide(self, batch: Batch, blocks: Blocks, prices: Prices) -> Windows | None:
        """None: a no-draft step."""

    def learn(self, batch: Batch, blocks: Blocks, taken: Windows | None, accepted: I64) -> None:
        """The outcome of the step. accepted: [bs] committed drafts."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a policy works."""

    costs: StepCosts
    host: HostTime
    gamma: int  # drafts per recorded block
    lag: int
    num_slots: int


@dataclass(frozen=True, slots=True)
class Policy:
    """A name and how to set it to work."""

    name: str
    gamma: int  # gamma limit; drafts whose outcome must be known
    needs_confidences: bool
    build: Callable[[Setting], Decider]

    @property
    def needs_outcomes(self) -> bool:
        return self.name != "no-draft"


class Planning:
    """Plans every step as the engine does: earlier confidences and finished steps only.

    The twin of `engine/planner.py`, which needs a device.
    """

    def __init__(
        self, setting: Setting, gamma: int, build: Callable[[Outlook], Planner], *, schedules: bool
    ) -> None:
        """schedules: confidences and a budget decide the windows; else the whole block is taken."""
        self.gamma, self._lag, self._schedules = gamma, setting.lag, schedules
        self._relay = ConfidenceRelay(setting.num_slots, gamma, setting.lag)
        self._feedback = AcceptanceFeedback(gamma)
        outlook = Outlook(
            self._relay, setting.costs, self._feedback if schedules else None, setting.host
        )
        self._planner = build(outlook)
        self._on_the_way: deque[tuple[Batch, F32 | None, I64 | None, I64]] = deque()

    def decide(self, batch: Batch, blocks: Blocks, prices: Prices) -> Windows | None:
        while self._on_the_way and self._on_the_way[0][0].step <= batch.step - self._lag:
            self._arrive(*self._on_the_way.popleft())
        plan = self._planner.plan(batch)
        if isinstance(self._planner, Synchronous):
            plan = self._planner.admit(batch, blocks.survival)
        if not plan.drafts:
            return None
        if not self._schedules:
            return Windows(self.gamma, np.full(batch.num_requests, self.gamma, dtype=np.int64))
        return Windows(plan.width, allocate(blocks.survival[:, : plan.width], plan.budget))

    def learn(self, batch: Batch, blocks: Blocks, taken: Windows | None, accepted: I64) -> None:
        if not self._schedules:
            return
        if taken is None:
            self._on_the_way.append((batch, None, None, accepted))
        else:
            survival = blocks.survival[:, : taken.width]
            self._on_the_way.append((batch, survival, taken.draft_lens, accepted))

    def _arrive(
        self, batch: Batch, survival: F32 | None, draft_lens: I64 | None, accepted: I64
    ) -> None:
        """What a step computed becomes known to the plans after it."""
        if survival is not None:
            self._relay.publish(batch.step, batch.slots, batch.generations, survival)
        if survival is None or draft_lens is None or not draft_lens.any():
            self._feedback.idle(batch.num_requests)
        else:
            self._feedback.observe(survival, draft_lens, accepted)


class Oracle:
    """Knows what would be accepted, and takes the most tokens per ms of every single step."""

    def __init__(self, gamma: int) -> None:
        self.gamma = gamma

    def decide(self, batch: Batch, blocks: Blocks, prices: Prices) -> Windows | None:
        best = best_step(blocks, prices, self.gamma)[0]
        if best is None:
            return None
        width, budget = best
        # What will be accepted first; a dearer, larger budget never helps, a cheaper one may.
        order = np.arange(width)
        return Windows(width, allocate((order < blocks.worth[:, None]) * 1.0, budget))

    def learn(self, batch: Batch, blocks: Blocks, taken: Windows | None, accepted: I64) -> None:
        """Nothing that it does not know already."""


def best_step(blocks: Blocks, prices: Prices, gamma: int) -> tuple[tuple[int, int] | None, float]:
    """((width, budget), tokens per ms) of the best step in hindsight; None: without drafts."""
    found: list[tuple[float, int, int]] = []
    for width in range(1, gamma + 1):
        step_ms, most = prices.drafting_ms(width), np.minimum(blocks.worth, width).sum()
        rates = (blocks.num_counted + np.minimum(np.arange(len(step_ms)), most)) / step_ms
        budget = int(rates.argmax())
        found.append((float(rates[budget]), width, budget))
    rate, width, budget = max(found)
    plain = blocks.num_counted / prices.no_draft_ms
    if plain > rate:  # False where it is not priced
        return None, float(plain)
    return (width, budget), rate


def parse_policy(name: str, gamma: int) -> Policy:
    """A policy by its name, for blocks of `gamma` drafts.

    Raises:
        PolicyError
    """
    if name == "compact":
        return Policy(name, gamma, True, lambda s: Planning(s, gamma, _search(s), schedules=True))
    if name == "no-draft":
        return Policy(name, gamma, False, lambda s: Planning(s, gamma, NeverDraft, schedules=False))
    if name == "algorithm-1":
        return Policy(
            name,
            gamma,
            True,
            lambda s: Planning(s, gamma, lambda _: Synchronous(s.costs), schedules=True),
        )
    if name == "oracle":
        return Policy(name, gamma, False, lambda _: Oracle(gamma))
    if match := _STATIC.fullmatch(name):
        return _static(name, int(match[1]), gamma)
    if match := _PINNED.fullmatch(name):
        pin = Pin(fraction=float(match[1])) if "." in match[1] else Pin(drafts=int(match[1]))
        return Policy(
            name,
            gamma,
            True,
            lambda s: Planning(s, gamma, lambda o: Pinned(o, pin), schedules=True),
        )
    raise PolicyError(f"no policy {name!r}; known: {KINDS}")


def _static(name: str, limit: int, gamma: int) -> Policy:
    if not 1 <= limit <= gamma:
        raise PolicyError(f"{name}: the recorded blocks have {gamma} drafts; give 1 to {gamma}")
    return Policy(name, limit, False, lambda s: Planning(s, limit, VerifyAll, schedules=False))


def _search(setting: Setting) -> Callable[[Outlook], Planner]:
    """Draft or not is decided too, where the table prices both."""
    arms = ArmRules() if setting.costs.prices_no_draft else None
    return lambda outlook: Searching(outlook, setting.costs, arms=arms, widths=WidthRules())
