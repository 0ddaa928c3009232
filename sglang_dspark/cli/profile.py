"""`sglang-dspark profile`: a cost table from real steps."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    refuse_to_overwrite,
    screen,
)

if TYPE_CHECKING:
    from sglang_dspark.profiling.profile.run import Job
    from sglang_dspark.profiling.profile.servers import Attached, Own

# requests, contexts of the whole batch, steps per cell and repeat, minutes
QUICK = (8, "256,4096", 8, 1.5)
FULL = (64, "256,1024,4096,16384", 12, 30.0)
BUNDLED_FLAGS = ("--dtype", "float32", "--random-seed", "0", "--sleep-on-idle")


def profile(
    context: typer.Context,
    target: Target = None,
    draft: Draft = None,
    attach: Annotated[
        str | None, typer.Option(help="URL of a running server, in place of starting one.")
    ] = None,
    trace_directory: Annotated[
        Path | None,
        typer.Option(help="With --attach: the folder on this machine it writes traces to."),
    ] = None,
    full: Annotated[
        bool,
        typer.Option(
            "--full/--quick",
            help="A table worth shipping (up to 64 requests, 30 minutes), or a quick look (up to "
            "8 requests, under 2 minutes with the bundled pair).",
        ),
    ] = False,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Time for measuring; one repeat is always completed."),
    ] = None,
    max_requests: Annotated[
        int | None, typer.Option(min=1, help="Most requests in a batch.")
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(
            help="Context tokens of the whole batch, comma-separated; one more between the middle "
            "two is measured and held out."
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(min=0.001, max=1.0, help="Repeat until each half-width is no more of a step."),
    ] = 0.03,
    out: Annotated[Path, typer.Option(help="Folder for the table and all else.")] = Path(
        "out/profile"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the samples of an interrupted run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the cells and the expected time.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure what a decode step costs on this machine, and write the cost table.

    Starts a server (SGLang's flags go after --) or attaches to one, pins every kind of step in
    turn, counts that it was executed, and checks the fitted table against cells held out.
    Writes table.json, samples.jsonl, figure.png, summary.json and, with its own server, server.log.
    """
    from sglang_dspark.cli.profile_screen import (
        ProfileProgress,
        plan_json,
        show_plan,
        show_summary,
    )
    from sglang_dspark.profiling.profile.run import FAILURES, Job, run_profile
    from sglang_dspark.profiling.profile.summary import write_results

    preset_requests, preset_contexts, steps, preset_minutes = FULL if full else QUICK
    most, source = max_requests or preset_requests, _Source(target, draft, tuple(context.args))
    job = Job(
        source=source.own(most, out / "server.log", trace_directory)
        if attach is None
        else source.attached(attach, trace_directory),
        contexts=_contexts(contexts or preset_contexts),
        max_requests=most,
        steps=steps,
        fine=full,
        minutes=preset_minutes if minutes is None else minutes,
        tolerance=tolerance,
        out=out,
        command=command_line(),
    )
    talk = screen(as_json)
    try:
        if dry_run:
            plan = job.plan(job.source.limits())
            show_plan(talk, plan, job.minutes)
            if as_json:
                print_json(plan_json(plan, job.minutes))
            return
        _check_files(job, resume, force)
        with interruptible(), ProfileProgress(talk, job.minutes) as progress:
            result = run_profile(job, progress, resume=resume)
    except FAILURES as error:
        fail(str(error))
    record = write_results(job, result)
    show_summary(talk, record)
    talk.print(f"Written to {out}: table.json, figure.png, summary.json, samples.jsonl.")
    if as_json:
        print_json(record)


@dataclass(frozen=True, slots=True)
class _Source:
    """What the user said about the server."""

    target: Path | None
    draft: Path | None
    flags: tuple[str, ...]  # SGLang's

    def own(self, max_requests: int, log: Path, trace_directory: Path | None) -> Own:
        from sglang_dspark.profiling.profile.servers import Own

        if trace_directory is not None:
            fail("--trace-directory goes with --attach; a server of our own has its own folder")
        if (self.target is None) != (self.draft is None):
            fail("give both --target and --draft, or neither for the bundled pair")
        return Own(
            target=model_folder("--target", self.target, "target"),
            draft=model_folder("--draft", self.draft, "draft"),
            max_requests=max_requests,
            flags=[*(BUNDLED_FLAGS if self.target is None else ()), *self.flags],
            log=log,
        )

    def attached(self, url: str, trace_directory: Path | None) -> Attached:
        from sglang_dspark.profiling.profile.servers import Attached

        if self.target is not None or self.draft is not None or self.flags:
            fail("--attach takes a server as it is: leave out --target, --draft, SGLang's flags")
        if trace_directory is None:
            fail(
                "--attach needs --trace-directory: the folder that the server writes traces to "
                "([trace] directory of its SGLANG_DSPARK_CONFIG), on this machine"
            )
        if not trace_directory.is_dir():
            fail(f"--trace-directory {trace_directory}: no such folder")
        return Attached(url.rstrip("/"), trace_directory)


def _contexts(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        fail(f"--contexts {text}: give whole numbers separated by commas, as in 256,1024,4096")


def _check_files(job: Job, resume: bool, force: bool) -> None:
    if not resume:
        refuse_to_overwrite(force, job.samples, *job.results)
    elif not job.samples.exists():
        fail(f"--resume: there is no {job.samples} to go on from; leave --resume out to start")
    else:
        refuse_to_overwrite(force, *job.results)
