"""What a server is prepared for, settled once before it answers: mode, cost table, calibration."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_dspark.core.calibration import Calibration, identity, load_calibration
from sglang_dspark.core.cost_table import Provenance
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.engine.identity import describe_server
from sglang_dspark.engine.modes import MODES, VARIABLE, verify_mode
from sglang_dspark.engine.start_up import SAMPLES, StartUpTimer
from sglang_dspark.engine.steering import Prepared, Steering
from sglang_dspark.engine.tables import LoadedTable, find_table
from sglang_dspark.settings import NoDraft, Settings

if TYPE_CHECKING:
    from sglang_dspark.engine.worker import DSparkWorker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """Fixed from here on; `steering` is where run-time control starts."""

    prepared: Prepared
    steering: Steering
    table: LoadedTable | None
    costs: StepCosts | None
    calibration: Calibration

    @property
    def table_name(self) -> str:
        """As `/server_info` shows it."""
        return "verify-all" if self.table is None else self.table.name


def set_up(worker: DSparkWorker, settings: Settings) -> Setup:
    """Settle everything that confidences and costs decide.

    Raises:
        ValueError: a mode, table or calibration that cannot serve; names the option to change.
    """
    has_confidence = worker.draft_runner.model.confidence_head is not None
    mode = verify_mode(os.environ)
    schedules = MODES[mode].schedules
    if schedules and not has_confidence:
        raise ValueError(f"{VARIABLE}={mode}: the draft has no confidence head; unset it")
    table = _table(worker, settings) if schedules else None
    costs = None
    if table is not None:
        costs = StepCosts(table.table, max_requests=worker.max_requests, gamma=worker.gamma)
    prepared = Prepared(
        gamma=worker.gamma,
        has_confidence=has_confidence,
        prices_no_draft=costs is not None and costs.prices_no_draft,
        modes=frozenset(n for n, m in MODES.items() if has_confidence or not m.schedules),
        traces=settings.trace.directory is not None,
    )
    steering = Steering(mode, worker.gamma, _no_draft(settings.no_draft, prepared, schedules))
    steering.check(prepared)
    return Setup(prepared, steering, table, costs, _calibration(worker))


def _no_draft(asked: NoDraft, prepared: Prepared, schedules: bool) -> NoDraft:
    """`auto` unless the user says otherwise, where plain decode has a price."""
    if asked.mode is not None:
        return asked
    return NoDraft(mode="auto" if schedules and prepared.prices_no_draft else "off")


def _calibration(worker: DSparkWorker) -> Calibration:
    named = worker.named_calibration
    return identity(worker.gamma) if named is None else load_calibration(Path(named), worker.gamma)


def _table(worker: DSparkWorker, settings: Settings) -> LoadedTable | None:
    if settings.cost_table == "off":
        logger.warning("sglang-dspark: cost_table = off: every draft is verified (verify-all)")
        return None
    server = describe_server(**worker.identity)
    timer = StartUpTimer(worker, worker.max_requests, worker.context_len)
    provenance = Provenance(
        kind="start-up",
        samples_per_point=SAMPLES,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(sys.argv),
        **asdict(server),
    )
    loaded = find_table(server, worker.named_cost_table, lambda: timer.measure(provenance))
    log = logger.warning if loaded.reasons else logger.info
    log("sglang-dspark: cost table %s (%s) %s", loaded.name, loaded.verdict, loaded.reasons or "")
    return loaded
