"""`sglang-dspark sweep`: arms x workloads x concurrency, compared round by round."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sglang_dspark.cli.common import (
    Draft,
    Force,
    Json,
    Target,
    command_line,
    fail,
    interruptible,
    model_folder,
    print_json,
    screen,
)


def sweep(
    plan: Annotated[Path, typer.Argument(help="TOML file: arms, workloads, concurrency, rounds.")],
    target: Target = None,
    draft: Draft = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help="Folder with a JSONL file per domain; without it the bundled ones."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Result file; an unfinished one is continued.")] = Path(
        "out/sweep.jsonl"
    ),
    rounds: Annotated[int | None, typer.Option(min=1, help="In place of the plan's.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be done.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Compare ways of serving one pair in interleaved rounds.

    One server without speculation and one with DSPARK run side by side; the DSPARK one is switched
    between its arms while it runs. An interrupted sweep goes on where it stopped when the same
    command is given again.
    """
    from sglang_dspark.cli.sweep_screen import SweepProgress, show_points, show_sweep
    from sglang_dspark.profiling.client import RequestError
    from sglang_dspark.profiling.prompts import PromptError
    from sglang_dspark.profiling.report.points import as_json_record, summarize_points
    from sglang_dspark.profiling.results import ResultsError
    from sglang_dspark.profiling.server import ServerError
    from sglang_dspark.profiling.sweep.plan import PlanError, read_plan
    from sglang_dspark.profiling.sweep.run import SweepError, SweepJob, run_sweep

    talk = screen(as_json)
    try:
        found = read_plan(plan, rounds)
    except PlanError as error:
        fail(str(error))
    job = SweepJob(
        plan=found,
        target=model_folder("--target", target, "target"),
        draft=model_folder("--draft", draft, "draft"),
        prompts=model_folder("--prompts", prompts, "prompts"),
        out=out,
        command=command_line(),
    )
    show_sweep(talk, job)
    if dry_run:
        raise typer.Exit
    if force:
        out.unlink(missing_ok=True)
    try:
        with interruptible(), SweepProgress(talk) as progress:
            results = run_sweep(job, progress)
    except (PromptError, ServerError, RequestError, ResultsError, SweepError) as error:
        fail(str(error), status=1)
    points = summarize_points(results)
    show_points(talk, points)
    for line in results.skipped:
        talk.print(f"[yellow]{line.arm} was left out:[/] {line.reason}", highlight=False)
    talk.print(f"Written to {out}. Plots: sglang-dspark report {out}", highlight=False)
    if as_json:
        print_json([as_json_record(point) for point in points])
