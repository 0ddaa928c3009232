"""`sglang-dspark doctor`: will this server run, with what, and what has to change?"""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sglang_dspark.cli.common import (
    Json,
    errors,
    fail,
    interruptible,
    model_folder,
    print_json,
    screen,
)

# What `--target` and so on stand for; a command line of SGLang may be given as it is instead.
SGLANG_FLAGS = {
    "--target": ("--model-path", "--model"),
    "--draft": ("--speculative-draft-model-path", "--speculative-draft-model"),
    "--table": ("--speculative-dspark-sps-table-path",),
    "--calibration": ("--speculative-dspark-confidence-sts-path",),
    "algorithm": ("--speculative-algorithm",),
}


def doctor(
    context: typer.Context,
    target: Annotated[
        Path | None, typer.Option(help="Folder of the target; without any the bundled pair.")
    ] = None,
    draft: Annotated[Path | None, typer.Option(help="Folder of its DSpark draft.")] = None,
    table: Annotated[Path | None, typer.Option(help="Cost table that the server is given.")] = None,
    calibration: Annotated[
        Path | None, typer.Option(help="Calibration (STS) file that the server is given.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Would this server run, and with whose worker? SGLang flags go after `--`.

    Checks installation, machine, flags, models, cost table and calibration without starting a
    server. The exit status is 0 if it will run, 1 with warnings, 3 if it will be refused, 2 for
    wrong use.
    """
    from sglang_dspark.cli.doctor_screen import show_report
    from sglang_dspark.doctor.finding import STATUS, verdict
    from sglang_dspark.doctor.gather import gather
    from sglang_dspark.doctor.judge import judge

    given = {"--target": target, "--draft": draft, "--table": table, "--calibration": calibration}
    flags = server_flags(given, context.args)
    talk = screen(as_json)
    with interruptible(), errors.status("Loading SGLang as a server would ..."):
        case = gather(flags)
    findings = judge(case)
    outcome = verdict(findings)
    show_report(talk, flags, findings, outcome, case.probed)
    if as_json:
        served = case.probed.served if case.probed else None
        record = {
            "verdict": outcome,
            "status": STATUS[outcome],
            "command": shlex.join(["python", "-m", "sglang.launch_server", *flags]),
            "worker": case.probed.worker if case.probed else None,
            "findings": [asdict(finding) for finding in findings],
            "served": served.model_dump() if served else None,
            "server": case.probed.server if case.probed else None,
        }
        print_json(record)
    raise typer.Exit(STATUS[outcome])


def server_flags(given: dict[str, Path | None], rest: list[str]) -> list[str]:
    """The flags of the server in question; ends with status 2 where something is named twice."""
    named = {flag.partition("=")[0] for flag in rest}
    flags: list[str] = []
    for option, value in given.items():
        theirs = [flag for flag in SGLANG_FLAGS[option] if flag in named]
        if value is not None and theirs:
            fail(f"{option} and {theirs[0]} name the same thing: give one of them")
        if value is not None:
            if not value.exists():
                hub = f" (a model of the hub: -- {SGLANG_FLAGS[option][0]} NAME)"
                missing = f"{option} {value}: no such file or folder"
                fail(missing + (hub if option in ("--target", "--draft") else ""))
            flags += [SGLANG_FLAGS[option][0], str(value)]
    if given["--target"] is None and not named & set(SGLANG_FLAGS["--target"]):
        if given["--draft"] is not None or named & set(SGLANG_FLAGS["--draft"]):
            fail("a draft without its target: give --target too, or neither for the bundled pair")
        pair = {n: str(model_folder(f"--{n}", None, n)) for n in ("target", "draft")}
        flags += ["--model-path", pair["target"], "--speculative-draft-model-path", pair["draft"]]
        flags += ["--dtype", "float32", "--sleep-on-idle"]  # as `serve` does
    if not named & set(SGLANG_FLAGS["algorithm"]):
        flags += ["--speculative-algorithm", "DSPARK"]
    return [*flags, *rest]
