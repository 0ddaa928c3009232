"""Exact output law with the *real* planner, relay, feedback and allocation in the loop.

Built on `lossless.py`. A state of the enumeration is (tokens of every request, everything that
the scheduler remembers), the latter pickled, so that equal memories merge.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np

from sglang_dspark.core.accept import transition_law
from sglang_dspark.core.allocate import allocate
from sglang_dspark.core.cost_table import BlockCost, CostTable, Surface
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.plan import Batch, Plan
from sglang_dspark.core.planner import Outlook, Synchronous
from sglang_dspark.core.relay import ConfidenceRelay
from tests.core.lossless import Model, Tokens

F32 = np.float32


class LevelModel(Model):
    """Confidences take two values, so that memories of different histories merge."""

    def _law(self, kind: str, prefix: Tokens) -> np.ndarray:
        law = super()._law(kind, prefix)
        return np.array([0.9 if law[0] > 1 / self.vocab else 0.25]) if kind == "confidence" else law


def staircase(
    verify_ms, no_draft_ms=None, *, draft_ms=(0.0,), max_requests=2, gamma=2
) -> StepCosts:
    """verify_ms[b - 1] is the price of b rows, draft_ms[w - 1] that of blocks of w drafts; the
    rest is free. no_draft_ms by requests."""
    verify = Surface(
        tuple(range(1, len(verify_ms) + 1)), (0,), tuple((float(ms),) for ms in verify_ms)
    )
    plain = None
    if no_draft_ms is not None:
        plain = Surface(
            tuple(range(1, len(no_draft_ms) + 1)), (0,), tuple((float(m),) for m in no_draft_ms)
        )
    free = BlockCost.of_any_width((1,), (0.0,))
    draft = BlockCost((1,), tuple(range(1, len(draft_ms) + 1)), (tuple(draft_ms),))
    table = CostTable(draft=draft, verify=verify, rest=free, no_draft=plain)
    return StepCosts(table, max_requests=max_requests, gamma=gamma)


@dataclass
class Scheduler:
    """What a worker does around the planner; `memory` is what survives from step to step."""

    build: Callable[[Outlook], Any]  # the planner under test
    costs: StepCosts
    lag: int
    gamma: int
    num_slots: int
    peek: bool = False  # wrong on purpose: the budget sees the step's own confidences
    seen: set[tuple[str, int]] = field(default_factory=set)

    def start(self) -> bytes:
        relay = ConfidenceRelay(self.num_slots, self.gamma, self.lag)
        return pickle.dumps((relay, getattr(self._planner(relay), "state", None)))

    def plan(self, memory: bytes, batch: Batch, peeked: np.ndarray | None = None):
        """(plan, planner, relay, planner's state after)."""
        relay, state = pickle.loads(memory)
        if peeked is not None:
            relay.publish(batch.step - self.lag, batch.slots, batch.generations, peeked)
        planner = self._planner(relay)
        if state is not None:
            planner.state = state
        plan = planner.plan(batch)
        self.seen.add((plan.reason, plan.width, plan.budget))
        return plan, planner, relay, getattr(planner, "state", None)

    def after(self, relay, state, batch: Batch, survival: np.ndarray | None) -> bytes:
        if survival is not None:
            relay = pickle.loads(pickle.dumps(relay))
            relay.publish(batch.step, batch.slots, batch.generations, survival)
        return pickle.dumps((relay, state))

    def _planner(self, relay: ConfidenceRelay):
        return self.build(Outlook(relay, self.costs))


class PlannedLaw:
    """Joint law of the first `num_tokens` tokens of every request; request r starts at (r,)."""

    def __init__(self, model: Model, scheduler: Scheduler, *, mode: str, num_tokens: int) -> None:
        self.model, self.scheduler, self.mode = model, scheduler, mode
        self.limit = num_tokens + 1
        self._outcomes: dict[Any, list[tuple[Tokens, float]]] = {}
        self._groups: dict[Tokens, list[tuple[tuple[float, ...], list[Any]]]] = {}

    def run(self, num_reqs: int, num_rounds: int) -> dict[tuple[Tokens, ...], float]:
        start = tuple((r % self.model.vocab,) for r in range(num_reqs))
        states = {(start, self.scheduler.start()): 1.0}
        for step in range(num_rounds):
            after: dict[Any, float] = defaultdict(float)
            for (prefixes, memory), prob in states.items():
                for ends, kept, share in self._step(step, prefixes, memory):
                    after[ends, kept] += prob * share
            states = dict(after)
        joint: dict[tuple[Tokens, ...], float] = defaultdict(float)
        for (prefixes, _), prob in states.items():
            joint[prefixes] += prob
        return dict(joint)

    def _step(self, step, prefixes, memory):
        running = [r for r, p in enumerate(prefixes) if len(p) < self.limit]
        if not running:
            yield prefixes, memory, 1.0
            return
        slots = np.array(running)
        batch = Batch(step, slots, np.ones_like(slots), 0, self.model.gamma)
        scheduler = self.scheduler
        if not scheduler.peek:
            plan, planner, relay, state = scheduler.plan(memory, batch)
            if not plan.drafts:
                kept = scheduler.after(relay, state, batch, None)
                yield from self._advance(prefixes, running, [(None, 0)] * len(running), kept, 1.0)
                return
        for groups in product(*(self._grouped(prefixes[r]) for r in running)):
            survival = np.array([g[0] for g in groups], dtype=F32)
            if scheduler.peek:
                plan, planner, relay, state = scheduler.plan(memory, batch, survival)
            if isinstance(planner, Synchronous):
                plan = planner.admit(batch, survival)
                scheduler.seen.add((plan.reason, plan.width, plan.budget))
            survival = survival[:, : plan.width]  # what else a whole block holds is never made
            lens = allocate(survival, plan.budget).tolist()
            kept = scheduler.after(relay, state, batch, survival)
            windows = [(g[0], n) for g, n in zip(groups, lens, strict=True)]
            yield from self._advance(prefixes, running, windows, kept, 1.0)

    def _advance(self, prefixes, running, windows, kept, share):
        ends = [self._outcome(prefixes[r], *w) for r, w in zip(running, windows, strict=True)]
        for combo in product(*ends):
            weight, result = share, list(prefixes)
            for r, (prefix, w) in zip(running, combo, strict=True):
                weight *= w
                result[r] = prefix
            yield tuple(result), kept, weight

    def _grouped(self, prefix):
        """Blocks of equal survival: the scheduler can not tell them apart."""
        if prefix not in self._groups:
            groups: dict[tuple[float, ...], list[Any]] = defaultdict(list)
            for block in self.model.blocks(prefix):
                groups[block.survival].append(block)
            self._groups[prefix] = list(groups.items())
        return self._groups[prefix]

    def _outcome(self, prefix, survival, draft_len):
        """[(prefix after, probability)], the chance of that survival pattern included."""
        key = (prefix, survival, draft_len)
        if key not in self._outcomes:
            merged: dict[Tokens, float] = defaultdict(float)
            if survival is None:  # a no-draft step
                for token, prob in enumerate(self.model.target(prefix)):
                    merged[(*prefix, token)] += float(prob)
            else:
                for block in dict(self._grouped(prefix))[survival]:
                    law = self.model.block_law(self._law, prefix, block.drafts, draft_len)
                    for (kept, token), prob in np.ndenumerate(law):
                        end = (*prefix, *block.drafts[:kept], token)[: self.limit]
                        merged[end] += block.prob * float(prob)
            self._outcomes[key] = [(p, w) for p, w in merged.items() if w]
        return self._outcomes[key]

    def _law(self, drafts, draft_probs, target_probs, draft_len):
        """cap-accept and static have every row, compact has those of the window only."""
        if self.mode == "compact":
            drafts, draft_probs = drafts[:draft_len], draft_probs[:draft_len]
            target_probs = target_probs[: draft_len + 1]
        return transition_law(drafts, draft_probs, target_probs, draft_len)


__all__ = ["LevelModel", "Plan", "PlannedLaw", "Scheduler", "staircase"]
