"""`sglang-dspark calibrate`: temperatures for the confidence head, from judged blocks."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
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
    from rich.console import Console

    from sglang_dspark.cli.progress import StageProgress
    from sglang_dspark.profiling.calibrate.record import RecordPlan

START_TIMEOUT_S = 600  # half a minute alone on a quiet machine
# Without --record nothing reads these.
RECORDING = (
    *("target", "draft", "prompts", "url", "trace_directory", "server_flags", "concurrency"),
    *("max_new_tokens", "temperature", "greedy"),
)


def calibrate(
    context: typer.Context,
    traces: Annotated[
        list[str] | None,
        typer.Argument(
            help="Traces recorded in cap-accept, one per domain: FILE or NAME=FILE. "
            "Or none, with --record."
        ),
    ] = None,
    evaluate: Annotated[
        list[str] | None,
        typer.Option(
            help="A trace that is only reported on, never fitted: FILE or NAME=FILE, as one of "
            "temperature 0. May be repeated."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for sts.json, report.json and reliability.png.")
    ] = Path("out/calibration"),
    min_rounds: Annotated[
        int,
        typer.Option(
            min=1,
            help="Held-out blocks per position that are asked for; use 20000 for a file to ship.",
        ),
    ] = 2000,
    seed: Annotated[int, typer.Option(help="Of the split into halves.")] = 0,
    record: Annotated[
        bool, typer.Option("--record", help="Record the traces first, into OUT/traces.")
    ] = False,
    target: Target = None,
    draft: Draft = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help='Prompt file of one domain, {"text": ..} or {"turns": [..]} a line; may be '
            "repeated. Without it the bundled code.jsonl and text.jsonl."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="Record from this running server in place of one of our own."),
    ] = None,
    trace_directory: Annotated[
        Path | None, typer.Option(help="With --url: the server's [trace] directory.")
    ] = None,
    server_flags: Annotated[
        str, typer.Option(help="More SGLang flags for the server, in one string.")
    ] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once.")] = 8,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0.01, help="Sampling temperature of what is fitted.")
    ] = 1.0,
    greedy: Annotated[
        bool,
        typer.Option(help="Also record each prompt at temperature 0, to report on."),
    ] = True,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fit one temperature per draft position (STS), judged on held-out requests.

    The fit needs blocks that were judged as a whole: traces of verify mode
    cap-accept. --record starts a server (or uses the one at --url), sends
    prompts until there are enough blocks, and fits.
    """
    from sglang_dspark.cli.calibrate_screen import show_report
    from sglang_dspark.core.calibration import dump_calibration
    from sglang_dspark.profiling.calibrate.figure import draw_reliability
    from sglang_dspark.profiling.calibrate.record import RecordPlan, rounds_per_domain
    from sglang_dspark.profiling.calibrate.report import TooFewRounds, as_calibration
    from sglang_dspark.profiling.calibrate.report import calibrate as fit
    from sglang_dspark.profiling.traces import TraceError, read_named_traces

    _check_use(context, traces, record, url, trace_directory)
    files = [out / name for name in ("sts.json", "report.json", "reliability.png")]
    refuse_to_overwrite(force, *files)
    talk, only_reported = screen(as_json), list(evaluate or ())
    if record:
        domains = _prompt_files(prompts)
        plan = RecordPlan(
            prompts=domains,
            rounds=rounds_per_domain(min_rounds, len(domains), max_new_tokens),
            folder=trace_directory or out / "traces",
            concurrency=concurrency,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            greedy=greedy,
        )
        refuse_to_overwrite(force, *plan.files().values())
        models = (target, draft, server_flags)
        traces, recorded_greedy = _record(talk, plan, url, models, out / "server.log")
        only_reported += recorded_greedy
    try:
        report = fit(
            read_named_traces(traces or []),
            read_named_traces(only_reported),
            min_rounds=min_rounds,
            seed=seed,
            command=command_line(),
        )
    except (TraceError, TooFewRounds) as error:
        fail(str(error))
    out.mkdir(parents=True, exist_ok=True)
    files[0].write_text(dump_calibration(as_calibration(report)), encoding="utf-8")
    files[1].write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8")
    draw_reliability(report, files[2])
    show_report(talk, report)
    talk.print(f"Written: {', '.join(map(str, files))}", highlight=False)
    if as_json:
        print_json(report.model_dump(mode="json"))


def _check_use(
    context: typer.Context,
    traces: list[str] | None,
    record: bool,
    url: str | None,
    trace_directory: Path | None,
) -> None:
    """End with status 2 where options contradict each other or would have no effect."""
    if record and traces:
        fail("give traces, or --record, not both; --evaluate takes traces beside a recording")
    if not record and not traces:
        fail("nothing to fit on: give traces recorded in cap-accept, or --record")
    if (url is None) != (trace_directory is None):
        fail("--url and --trace-directory go together: the server's address and its trace folder")
    sources = {name: context.get_parameter_source(name) for name in RECORDING}
    given = [name for name, source in sources.items() if source and source.name != "DEFAULT"]
    if given and not record:
        fail(f"--{given[0].replace('_', '-')} is for recording: add --record")
    useless = [n for n in ("target", "draft", "server_flags") if n in given]
    if url is not None and useless:
        fail(f"--{useless[0].replace('_', '-')} has no effect on the running server at --url")


def _prompt_files(prompts: list[Path] | None) -> dict[str, list[str]]:
    """Texts by domain."""
    from sglang_dspark.profiling.prompts import PromptError
    from sglang_dspark.profiling.sweep.prompts import read_texts

    if prompts is None:
        folder = model_folder("--prompts", None, "prompts")
        prompts = [folder / "code.jsonl", folder / "text.jsonl"]
    if len({file.stem for file in prompts}) < len(prompts):
        fail("two prompt files have the same name, which is the name of the domain")
    try:
        return {file.stem: read_texts(file) for file in prompts}
    except PromptError as error:
        fail(str(error))


def _record(
    talk: Console,
    plan: RecordPlan,
    url: str | None,
    models: tuple[Path | None, Path | None, str],
    log: Path,
) -> tuple[list[str], list[str]]:
    """Traces to fit on and traces to report on, as NAME=FILE.

    models: --target, --draft, --server-flags.
    """
    from sglang_dspark.cli.progress import StageProgress
    from sglang_dspark.profiling.calibrate.record import RecordError, record_traces
    from sglang_dspark.profiling.client import RequestError
    from sglang_dspark.profiling.server import ServerError

    for file in plan.files().values():  # the user said --force, or there are none
        file.unlink(missing_ok=True)
    try:
        with interruptible(), StageProgress(talk) as progress, ExitStack() as stack:
            if url is None:
                url = _start_server(plan, models, log, progress, stack)
            record_traces(url, plan, progress)
    except (ServerError, RequestError, RecordError) as error:
        fail(str(error), status=1)
    named = [f"{name}={file}" for name, file in plan.files().items()]
    return named[: len(plan.prompts)], named[len(plan.prompts) :]


def _start_server(
    plan: RecordPlan,
    models: tuple[Path | None, Path | None, str],
    log: Path,
    progress: StageProgress,
    stack: ExitStack,
) -> str:
    """The address of a server that `stack` will stop."""
    from sglang_dspark.profiling.calibrate.record import recording_server

    target, draft, text = models
    flags = shlex.split(text)
    if target is None and draft is None:  # the bundled pair; its numbers are fp32's
        flags = ["--dtype", "float32", *flags]
    server = recording_server(
        model_folder("--target", target, "target"),
        model_folder("--draft", draft, "draft"),
        plan,
        flags=flags,
        log=log,
    )
    progress.stage("Starting a server in cap-accept (most of it is imports)")
    stack.callback(server.stop)
    server.launch()
    server.wait(START_TIMEOUT_S, progress.tick)
    return server.url
