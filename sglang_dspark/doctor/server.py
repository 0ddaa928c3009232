"""Settings, variables and flags: what is refused, and whose worker would serve."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_dspark.doctor.facts import Installation, Probed
from sglang_dspark.doctor.finding import Finding, ok, problem, warning

OUR_WORKER = "sglang_dspark.engine.worker.DSparkWorker"
CONFIG = "SGLANG_DSPARK_CONFIG"


def check_settings(found: Installation) -> Finding:
    file = found.environment.get(CONFIG)
    if found.settings_error is not None:
        return problem("settings", found.settings_error, f"correct the file, or unset {CONFIG}")
    if not file:
        return ok("settings", f"{CONFIG} is not set: defaults")
    changed = ", ".join(f"{name} = {value}" for name, value in found.settings_changed.items())
    return ok("settings", f"{file}: {changed or 'nothing but defaults'}")


def check_environment(found: Installation, probed: Probed | None) -> Iterator[Finding]:
    refused = [r for r in (probed.refused if probed else ()) if _is_variable(r)]
    for reason in refused:
        yield problem("environment", *_split(reason))
    given = [f"{name}={value}" for name, value in found.environment.items() if name != CONFIG]
    if not refused:
        yield ok("environment", ", ".join(given) or "no variable that matters is set")


def check_flags(probed: Probed) -> Iterator[Finding]:
    if probed.parse_error is not None:
        yield problem("SGLang flags", probed.parse_error, "see python -m sglang.launch_server -h")
        return
    refused = [r for r in probed.refused if not _is_variable(r)]
    for reason in refused:
        yield problem("SGLang flags", *_split(reason))
    if probed.algorithm != "DSPARK":
        yield problem(
            "SGLang flags",
            f"--speculative-algorithm {probed.algorithm}: such a server does not use DSPARK",
            "leave the flag out, or give DSPARK",
        )
    elif not refused:
        yield ok("SGLang flags", "accepted" if probed.served else "none of them is refused")


def check_start(probed: Probed, said: str) -> Iterator[Finding]:
    """What else ends the start. said: the texts of all other findings, to say nothing twice."""
    error = probed.start_error
    if error is not None and error.strip().partition("\n")[0] not in said:
        yield problem("start", f"SGLang would stop: {error}")


def check_worker(probed: Probed) -> Finding:
    served = probed.worker
    if served == OUR_WORKER and probed.plugin_ran:
        return ok("worker", f"sglang-dspark's ({served})")
    if served is None:
        return warning("worker", "cannot be told: SGLang did not get that far")
    return warning(
        "worker",
        f"SGLang's own ({served}), not the one of this package",
        "see `plugin` above; SGLang has to load this package",
    )


def _is_variable(reason: str) -> bool:
    return reason.startswith("SGLANG_")


def _split(reason: str) -> tuple[str, str]:
    """(what is wrong, what to change); reasons of this package are written in that order."""
    for mark in ("; ", ": "):
        text, found, advice = reason.rpartition(mark)
        if found:
            return text, advice
    return reason, ""
