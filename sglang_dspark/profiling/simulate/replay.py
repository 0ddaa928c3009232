"""The replay: a closed loop of recorded requests under one policy."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.host_time import HostTime
from sglang_dspark.core.plan import Batch
from sglang_dspark.profiling.simulate.histories import History, Workload
from sglang_dspark.profiling.simulate.policies import (
    Blocks,
    Decider,
    Policy,
    PolicyError,
    Prices,
    Setting,
    best_step,
)

I64 = npt.NDArray[np.int64]

WARM_UP_PER_SLOT = 4  # requests that a server has served before it is watched


@dataclass(frozen=True, slots=True)
class Outcome:
    """One policy at one concurrency; sums over the replay."""

    policy: str
    concurrency: int
    requests: int
    steps: int = 0
    no_draft_steps: int = 0
    ms: float = 0.0
    tokens: int = 0  # committed and of use
    oracle_tokens: float = 0.0  # that the best step every time would have given in the same time
    pairs: int = 0  # (request, step) pairs that went through verification
    verified: int = 0  # drafts
    accepted: int = 0  # drafts

    @property
    def tokens_per_s(self) -> float:
        return 1e3 * self.tokens / self.ms

    @property
    def draft_len(self) -> float:
        """Mean over the pairs; NaN where no step drafted."""
        return self.verified / self.pairs if self.pairs else math.nan

    @property
    def accept_length(self) -> float:
        return 1 + self.accepted / self.pairs if self.pairs else math.nan

    @property
    def no_draft_share(self) -> float:
        return self.no_draft_steps / self.steps

    @property
    def regret(self) -> float:
        """Share of the oracle's tokens that were missed, 0..1; NaN where outcomes are unknown.

        The oracle decides every step of this very replay in hindsight, so it is never behind.
        """
        return 1 - self.tokens / self.oracle_tokens

    def as_record(self) -> dict[str, Any]:
        """For JSON; null where there is no value."""
        derived = {
            name: value if math.isfinite(value := getattr(self, name)) else None
            for name in ("tokens_per_s", "draft_len", "no_draft_share", "accept_length", "regret")
        }
        sums = asdict(self)
        if math.isnan(self.oracle_tokens):
            sums["oracle_tokens"] = None
        return derived | sums


@dataclass(slots=True)
class _Running:
    """A request in a slot."""

    history: History
    generation: int
    block: int = 0
    committed: int = 0
    late_steps: int = 0  # still to come after its end

    @property
    def remaining(self) -> int:
        return self.history.tokens - self.committed

    @property
    def context(self) -> int:
        return self.history.start_context + self.committed


class Replay:
    """One server of `concurrency` slots under one policy; what it has learned stays with it."""

    def __init__(
        self, workload: Workload, costs: StepCosts, policy: Policy, concurrency: int, host: HostTime
    ) -> None:
        """costs: for at least `concurrency` requests and the workload's gamma.

        Raises:
            PolicyError: the trace or the table lacks what the policy needs.
        """
        _check(workload, costs, policy)
        self._workload, self._costs, self._policy, self._host = workload, costs, policy, host
        self._slots: list[_Running | None] = [None] * concurrency
        setting = Setting(costs, host, workload.gamma, workload.lag, concurrency)
        self._decider: Decider = policy.build(setting)
        self._step, self._generation = -1, 0
        self._all_known = not workload.unknown_share

    def serve(self, histories: Sequence[History], *, drain: bool = False) -> Outcome:
        """Serve these requests in order, as many at once as there are slots, to the last one.

        drain: count the end as well, when fewer are left than there are slots, as a measurement
        of one load does; else only steps of a full server.
        """
        waiting = deque(histories)
        seen = Outcome(self._policy.name, len(self._slots), len(histories))
        drain = drain or len(histories) < len(self._slots)
        while self._fill(waiting):
            counts = drain or all(self._slots)
            after = self._take_step(seen)
            seen = after if counts else seen
        return seen

    def _fill(self, waiting: deque[History]) -> bool:
        """Take new requests in; False when all are served."""
        if all(r is None or r.late_steps for r in self._slots):
            self._slots = [None] * len(self._slots)  # when all end together no step is launched
        for slot, running in enumerate(self._slots):
            if running is None and waiting:
                self._generation += 1
                self._slots[slot] = _Running(waiting.popleft(), self._generation)
        return any(self._slots)

    def _take_step(self, seen: Outcome) -> Outcome:
        slots = [slot for slot, running in enumerate(self._slots) if running]
        rows = [running for running in self._slots if running]
        self._step += 1
        batch = Batch(
            step=self._step,
            slots=np.array(slots, dtype=np.int64),
            generations=np.array([r.generation for r in rows], dtype=np.int64),
            context_tokens=sum(r.context for r in rows),
            gamma=self._decider.gamma,
        )
        kept, blocks = self._blocks(rows)
        prices = self._prices(batch)
        taken = self._decider.decide(batch, blocks, prices)
        lens = accepted = useful = np.zeros_like(kept)  # what would survive may not be known
        if taken is not None:
            lens = taken.draft_lens
            accepted, useful = np.minimum(kept, lens), np.minimum(blocks.worth, lens)
        self._decider.learn(batch, blocks, taken, accepted)
        self._commit(slots, accepted)
        ms, drafted, verified = prices.no_draft_ms, taken is not None, int(lens.sum())
        if taken is not None:
            ms = float(prices.drafting_ms(taken.width)[verified])
        gamma = self._workload.gamma
        best_rate = best_step(blocks, prices, gamma)[1] if self._all_known else math.nan
        return replace(
            seen,
            steps=seen.steps + 1,
            no_draft_steps=seen.no_draft_steps + (not drafted),
            ms=seen.ms + ms,
            tokens=seen.tokens + blocks.num_counted + int(useful.sum()),
            oracle_tokens=seen.oracle_tokens + ms * best_rate,
            pairs=seen.pairs + len(rows) * drafted,
            verified=seen.verified + verified,
            accepted=seen.accepted + int(accepted.sum()),
        )

    def _blocks(self, rows: Sequence[_Running]) -> tuple[I64, Blocks]:
        """(drafts that would be accepted [bs], the next block of every request)."""
        limit = self._decider.gamma
        kept = np.array([r.history.num_survived[r.block] for r in rows], dtype=np.int64)
        kept = np.minimum(kept, self._workload.gamma)
        survival = np.zeros((len(rows), limit), dtype=np.float32)
        for i, running in enumerate(rows):
            if running.history.survival is not None:
                survival[i] = running.history.survival[running.block, :limit]
        # Tokens past a request's end are of no use; nor is anything after it.
        left = np.array([0 if r.late_steps else r.remaining - 1 for r in rows], dtype=np.int64)
        worth = np.maximum(np.minimum(kept, left), 0)
        return kept, Blocks(survival, worth, sum(not r.late_steps for r in rows))

    def _prices(self, batch: Batch) -> Prices:
        n, gap_ms = batch.num_requests, self._host.ms(batch.num_requests)

        def drafting_ms(width: int) -> npt.NDArray[np.float64]:
            return self._costs.drafting_ms(n, batch.context_tokens, width) + gap_ms

        return Prices(drafting_ms, self._costs.no_draft_ms(n, batch.context_tokens) + gap_ms)

    def _commit(self, slots: Iterable[int], accepted: I64) -> None:
        for slot, drafts in zip(slots, accepted.tolist(), strict=True):
            running = self._slots[slot]
            assert running is not None
            running.block = (running.block + 1) % len(running.history.num_survived)
            if running.late_steps:
                self._slots[slot] = None
                continue
            last_token = running.remaining == 1  # known beforehand: no step is launched after it
            running.committed += drafts + 1
            if running.remaining <= 0:
                running.late_steps = 0 if last_token else self._workload.lag - 1
                if not running.late_steps:
                    self._slots[slot] = None


def run_policy(
    workload: Workload,
    costs: StepCosts,
    policy: Policy,
    concurrency: int,
    histories: Sequence[History],
    host: HostTime | None = None,
    *,
    drain: bool = False,
) -> Outcome:
    """A server that has been running for a while serves these requests.

    host: the engine's own time between steps; None leaves it out. drain: see `Replay.serve`.
    """
    server = Replay(workload, costs, policy, concurrency, host or HostTime())
    server.serve(histories[: WARM_UP_PER_SLOT * concurrency])
    return server.serve(histories, drain=drain)


def _check(workload: Workload, costs: StepCosts, policy: Policy) -> None:
    """Raises PolicyError."""
    if policy.name == "no-draft" and not costs.prices_no_draft:
        raise PolicyError("no-draft: this table does not price plain decode; leave it out")
    if policy.needs_confidences and not workload.has_confidences:
        raise PolicyError(
            f"{policy.name}: the trace holds no confidences, as it was recorded in verify mode "
            "static; record in cap-accept (dspark_verify_mode)"
        )
    if policy.needs_outcomes and workload.unknown_share:
        raise PolicyError(
            f"{policy.name}: in {workload.unknown_share:.0%} of the blocks the window cut off what "
            "the rest would have given, as compact does; record in cap-accept "
            "(dspark_verify_mode), or ask for --policy no-draft alone"
        )
