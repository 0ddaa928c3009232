"""What a server is prepared for, settled once before it answers: mode, cost table, calibration."""

from __future__ import annotations

import logging
import os
import shlex
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sglang_dspark.core.calibration import Calibration, identity, load_calibration
from sglang_dspark.core.cost_table import Provenance
from sglang_dspark.core.cost_verdict import Server
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.row_counts import rounded_rows
from sglang_dspark.engine.identity import describe_server
from sglang_dspark.engine.modes import MODES, VARIABLE, Compact, starting_mode
from sglang_dspark.engine.shelf import PricedTable, Shelf
from sglang_dspark.engine.start_up import PASSES, SAMPLES, StartUpTimer
from sglang_dspark.engine.steering import Prepared, Steering
from sglang_dspark.engine.tables import LoadedTable, find_table
from sglang_dspark.settings import NoDraft, Settings

if TYPE_CHECKING:
    from sglang_dspark.engine.worker import DSparkWorker

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Setup:
    """Fixed from here on; `steering` is where run-time control starts."""

    server: Server
    mode_reason: str  # why this server starts in its verify mode
    prepared: Prepared
    steering: Steering


def set_up(worker: DSparkWorker, settings: Settings) -> Setup:
    """Settle everything that confidences and costs decide.

    Raises:
        ValueError: a mode, table or calibration that cannot serve; names the option to change.
    """
    has_confidence = worker.draft_runner.model.confidence_head is not None
    mode, reason = starting_mode(
        os.environ,
        has_confidence=has_confidence,
        captures_graphs=worker.captures_graphs,
        tables=settings.cost_table != "off",
    )
    schedules = MODES[mode].schedules
    if schedules and not has_confidence:
        raise ValueError(f"{VARIABLE}={mode}: the draft has no confidence head; unset it")
    server = describe_server(**worker.identity)

    def price(found: LoadedTable) -> PricedTable:
        costs = StepCosts(
            found.table,
            max_requests=worker.max_requests,
            gamma=worker.gamma,
            round_rows=rounded_rows if worker.packs_weights else None,
        )
        return PricedTable(found.name, found.verdict, found.reasons, costs)

    table = _table(worker, server, settings) if schedules else None
    priced = None if table is None else price(table)
    possible = {n for n, m in MODES.items() if has_confidence or not m.schedules}
    prepared = Prepared(
        gamma=worker.gamma,
        has_confidence=has_confidence,
        modes=frozenset(possible - ({Compact.name} if worker.captures_graphs else set())),
        shelf=Shelf(server, price, settings.control.cost_tables, settings.control.calibrations),
        table=priced,
        calibration=_calibration(worker),
        traces=settings.trace.directory is not None,
        lagged=settings.scheduler == "lagged",
    )
    no_draft = settings.no_draft
    if no_draft.mode is None:
        no_draft = NoDraft(mode=_no_draft_mode(settings, schedules, priced), period=no_draft.period)
    steering = Steering(
        mode, worker.gamma, no_draft, table=priced, calibration=prepared.calibration
    )
    steering.check()
    return Setup(server, reason, prepared, steering)


def _no_draft_mode(
    settings: Settings, schedules: bool, table: PricedTable | None
) -> Literal["auto", "off"]:
    """Unless the user says: `auto` if the planner can choose and plain decode has a price."""
    can_choose = schedules and settings.scheduler == "lagged"
    return "auto" if can_choose and table is not None and table.costs.prices_no_draft else "off"


def _calibration(worker: DSparkWorker) -> Calibration:
    named = worker.named_calibration
    return identity(worker.gamma) if named is None else load_calibration(Path(named), worker.gamma)


def _table(worker: DSparkWorker, server: Server, settings: Settings) -> LoadedTable | None:
    if settings.cost_table == "off":
        logger.warning("sglang-dspark: cost_table = off: every draft is verified (verify-all)")
        return None
    timer = StartUpTimer(worker, worker.max_requests, worker.context_len)
    provenance = Provenance(
        kind="start-up",
        samples_per_point=PASSES * SAMPLES,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=shlex.join(sys.argv),
        **asdict(server),
    )
    loaded = find_table(
        server,
        worker.named_cost_table,
        lambda: timer.measure(provenance),
        known=settings.cost_table == "auto",
    )
    log = logger.warning if loaded.reasons else logger.info
    log("sglang-dspark: cost table %s (%s) %s", loaded.name, loaded.verdict, loaded.reasons or "")
    return loaded
