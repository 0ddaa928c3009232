"""All checks, in the order of the screen."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_dspark.doctor.facts import Case, Probed
from sglang_dspark.doctor.finding import Finding, problem
from sglang_dspark.doctor.installation import (
    check_packages,
    check_plugin,
    check_python,
    check_seam,
)
from sglang_dspark.doctor.machine import check_device, check_memory
from sglang_dspark.doctor.models import check_draft, check_mode, check_target
from sglang_dspark.doctor.scheduling import check_calibration, check_table
from sglang_dspark.doctor.server import (
    OUR_WORKER,
    check_environment,
    check_flags,
    check_settings,
    check_start,
    check_worker,
)

GROUPS = {
    "Installation": ("Python", "packages", "plugin", "seam"),
    "Machine": ("device", "processor", "memory"),
    "Server": ("settings", "environment", "SGLang flags", "start", "worker"),
    "Models": ("target", "draft", "verify mode"),
    "Scheduling": ("cost table", "calibration"),
}


def judge(case: Case) -> list[Finding]:
    """Every finding, grouped."""
    found = list(_findings(case))
    if case.probed is not None:
        found += check_start(case.probed, "\n".join(f"{f.text}; {f.advice}" for f in found))
    order = [topic for topics in GROUPS.values() for topic in topics]
    return sorted(found, key=lambda f: order.index(f.topic))


def _findings(case: Case) -> Iterator[Finding]:
    installation, probed = case.installation, case.probed
    yield check_python(installation)
    yield from check_packages(installation)
    yield check_settings(installation)
    yield from check_environment(installation, probed)
    if probed is None:
        reason = case.probe_error or "no reason was given"
        yield problem("start", f"SGLang cannot be loaded: {reason}", "reinstall this package")
        return
    yield from check_plugin(installation, probed)
    yield from check_seam(probed)
    yield from check_device(probed)
    yield from check_flags(probed)
    if probed.parse_error is None:
        yield check_worker(probed)
        yield from _of_models(probed)


def _of_models(probed: Probed) -> Iterator[Finding]:
    target, draft, served = probed.target, probed.draft, probed.served
    if target is not None:
        yield from check_target(target)
    if draft is None:
        return
    yield from check_draft(draft)
    if draft.gamma:
        yield check_calibration(draft, probed.calibration)
    if served is None or target is None:
        return
    yield from check_memory(probed.machine, target, draft, served)
    if probed.worker != OUR_WORKER:  # it has modes and tables of its own
        return
    yield check_mode(draft, served)
    yield check_table(served, probed.table)
