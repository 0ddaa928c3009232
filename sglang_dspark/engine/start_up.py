"""A small cost table measured before the server answers: real steps of made-up batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from sglang_dspark.core.cost_table import BlockCost, CostTable, Provenance, Surface
from sglang_dspark.core.plan import Batch, Plan
from sglang_dspark.engine.modes import WHOLE_BLOCK
from sglang_dspark.engine.planner import LaunchedStep
from sglang_dspark.engine.reference import ReferenceWork
from sglang_dspark.ops.layout import row_layout
from sglang_dspark.seam.timing_batch import timing_batch

if TYPE_CHECKING:
    from sglang_dspark.engine.worker import DSparkWorker

logger = logging.getLogger(__name__)

PASSES = 2  # over all sizes, some seconds apart: a busy moment spoils half of a point's samples
USUAL_CONTEXT = 192  # tokens of a request
WARM_UPS, SAMPLES = 1, 3  # of each point, in each pass
NAN = float("nan")
F64 = npt.NDArray[np.float64]


class SteadyClock:
    """Times in units of a fixed product at their side: a slow moment of the machine cancels.

    Where the host does not see a step end, one unit is a millisecond.
    """

    def __init__(self, reference: ReferenceWork | None) -> None:
        self._reference = reference
        self._seen: list[float] = []

    def units(self, ms: F64) -> F64:
        """What has just been timed, whatever its shape."""
        if self._reference is None:
            return ms
        self._seen.append(self._reference.time_ms())
        return ms / self._seen[-1]

    @property
    def unit_ms(self) -> float:
        """The product's usual time, over all that was timed."""
        return float(np.median(self._seen)) if self._seen else 1.0


class StartUpTimer:
    """Times the parts of a step at a few sizes: medians over all passes."""

    def __init__(self, worker: DSparkWorker, max_requests: int, context_len: int) -> None:
        self._worker, self._gamma = worker, worker.gamma
        self._clock = SteadyClock(ReferenceWork() if worker.is_synchronous else None)
        widest = context_len - 2 * (worker.gamma + 1)
        self._contexts = sorted({min(c, widest) for c in (128, 1024, 4096)})
        self._requests = _powers(max_requests)
        self._widths = tuple(sorted({1, (worker.gamma + 1) // 2, worker.gamma}))
        self._rows = _powers(max_requests * (worker.gamma + 1))

    def measure(self, provenance: Provenance) -> CostTable:
        """About 20 s on two CPU cores with the bundled pair."""
        begun = time.monotonic()
        passes = [self._measure_once(f"{n} of {PASSES}") for n in range(1, PASSES + 1)]
        once, verify, no_draft = (
            self._clock.unit_ms * np.median(np.concatenate(grids, -1), -1)
            for grids in zip(*passes, strict=True)
        )
        contexts = tuple(self._contexts)
        table = CostTable(
            draft=BlockCost(self._requests, self._widths, _rising(once[..., 0])),
            rest=BlockCost(self._requests, self._widths, _rising(once[..., 1])),
            verify=Surface(self._rows, contexts, _rising(verify)),
            no_draft=Surface(self._requests, contexts, _rising(no_draft)),
            provenance=provenance,
        )
        logger.info("sglang-dspark: cost table measured in %.0f s", time.monotonic() - begun)
        return table

    def _measure_once(self, number: str) -> tuple[F64, F64, F64]:
        """([requests, widths, 2] draft and rest, [rows, contexts] verify, [requests, contexts]
        no-draft), each with its samples [..., SAMPLES] in the clock's units"""
        logger.info("sglang-dspark: measuring the cost table, pass %s: draft", number)
        once = np.array([[self._drafting(r, w) for w in self._widths] for r in self._requests])
        logger.info("sglang-dspark: measuring the cost table, pass %s: verify", number)
        verify = self._grid(self._rows, self._verify)
        logger.info("sglang-dspark: measuring the cost table, pass %s: no draft", number)
        return once, verify, self._grid(self._requests, self._no_draft)

    def _grid(self, sizes: Sequence[int], measure: Callable[[int, int], F64]) -> F64:
        """[size, context, SAMPLES]"""
        return np.array([[measure(size, c) for c in self._contexts] for size in sizes])

    def _drafting(self, num_requests: int, width: int) -> F64:
        """[2, SAMPLES] draft and rest of steps that verify all: what is in neither forward is
        rest."""
        # The parts have no context axis of their own: a usual one, then.
        context = min(USUAL_CONTEXT * num_requests, self._contexts[-1])
        with self._batch(num_requests, context, width + 1) as batch:
            step = self._step(batch, num_requests, width)

            def run() -> F64:
                self._worker.run_step(batch.again(), step)
                self._worker.synchronize()
                return np.array(astuple(step.spent))

            draft, target, whole = self._sampled(run)
        return np.stack([draft, np.maximum(whole - draft - target, 0.0)])

    def _verify(self, num_rows: int, context: int) -> F64:
        """[SAMPLES] of the target's forward over `num_rows` rows, spread as a scheduler would."""
        num_requests = min(max(1, num_rows // 4), self._requests[-1])
        lens = torch.full((num_requests,), num_rows // num_requests - 1, dtype=torch.int64)
        lens[: num_rows - int(lens.sum()) - num_requests] += 1
        width = int(lens.max()) + 1
        with self._batch(num_requests, context, width) as batch:
            window = self._worker.windows.build(batch, width)
            ids = torch.ones((num_requests, width), dtype=torch.int64, device=window.slots.device)
            layout = row_layout(lens.to(window.slots.device), num_rows)
            layout = WHOLE_BLOCK.layout if num_requests == 1 else layout
            return self._clocked(
                lambda: self._worker.target.verify(batch.again(), ids, window, layout)
            )

    def _no_draft(self, num_requests: int, context: int) -> F64:
        """[SAMPLES] of a whole plain decode step."""
        with self._batch(num_requests, context, 1) as batch:
            step = self._step(batch, num_requests, 0)
            return self._clocked(lambda: self._worker.run_step(batch.again(), step))

    def _clocked(self, run: Callable[[], Any]) -> F64:
        """[SAMPLES] of a call."""

        def timed() -> F64:
            begun = time.perf_counter()
            run()
            self._worker.synchronize()
            return np.array((time.perf_counter() - begun) * 1e3)

        return self._sampled(timed)

    def _sampled(self, timed: Callable[[], F64]) -> F64:
        """[..., SAMPLES] in the clock's units: `timed` gives ms [...]."""
        for _ in range(WARM_UPS):
            timed()
        return np.stack([self._clock.units(timed()) for _ in range(SAMPLES)], -1)

    def _batch(self, num_requests: int, context: int, width: int) -> Any:
        """context: tokens of the whole batch."""
        each = max(1, context // num_requests)
        return timing_batch(self._worker.model_runner, [each] * num_requests, width)

    @staticmethod
    def _step(batch: Any, num_requests: int, num_drafts: int) -> LaunchedStep:
        slots = np.arange(1, num_requests + 1, dtype=np.int64)
        rows = num_requests * (num_drafts + 1)
        plan = Plan(num_drafts, num_requests * num_drafts, rows, NAN, NAN, "verify-all")
        return LaunchedStep(plan, Batch(0, slots, slots, int(batch.seq_lens_sum), num_drafts))


def _rising(ms: F64) -> tuple[tuple[float, ...], ...]:
    """A surface near `ms` that rises both ways, as costs do and noise does not.

    Between the largest one below and the smallest one above: what is noise goes either way.
    """
    below, above = ms, ms
    for axis in (0, 1):
        below = np.flip(np.minimum.accumulate(np.flip(below, axis), axis), axis)
        above = np.maximum.accumulate(above, axis)
    return tuple(tuple(row) for row in ((below + above) / 2).tolist())


def _powers(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest."""
    sizes = [2**k for k in range(largest.bit_length()) if 2**k < largest]
    return (*sizes, largest)
