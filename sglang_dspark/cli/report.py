"""`sglang-dspark report`: figures, Markdown and one HTML page from the results of a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from sglang_dspark.cli.common import (
    Force,
    Json,
    command_line,
    fail,
    print_json,
    refuse_to_overwrite,
    screen,
)

if TYPE_CHECKING:
    from sglang_dspark.profiling.report.document import Document


def report(
    results: Annotated[Path, typer.Argument(help="Result file of sglang-dspark sweep.")],
    calibration: Annotated[
        Path | None,
        typer.Option(help="Folder of sglang-dspark calibrate: the reliability diagram."),
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(
            help="Trace of the worker: step times and, if recorded in cap-accept, the threshold "
            "sweep. May be given once per domain."
        ),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="Folder of sglang-dspark profile: its cells among the step times."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the report.")] = Path("out/report"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Draw the results of a sweep as figures of the paper, with intervals.

    Writes report.html (one file that opens from disk), report.md and a PNG per figure.

    What the inputs do not allow is left out, and the report says so.
    """
    from sglang_dspark.profiling.report.build import Builder, Inputs
    from sglang_dspark.profiling.report.calibration import read_calibration
    from sglang_dspark.profiling.report.points import as_json_record
    from sglang_dspark.profiling.report.profile import read_profile
    from sglang_dspark.profiling.report.rounds import ReportError
    from sglang_dspark.profiling.report.write import possible_files, write_report
    from sglang_dspark.profiling.results import ResultsError, read_results
    from sglang_dspark.profiling.traces import TraceError, read_trace

    if out.exists() and not out.is_dir():
        fail(f"--out {out}: is a file; give a folder")
    refuse_to_overwrite(force, *possible_files(out))
    talk = screen(as_json)
    try:
        with talk.status("Reading and drawing ..."):
            inputs = Inputs(
                results=read_results(results),
                results_name=str(results),
                command=command_line(),
                traces=tuple(read_trace(path) for path in trace or ()),
                calibration=None if calibration is None else read_calibration(calibration),
                calibration_name=str(calibration),
                profile=None if profile is None else read_profile(profile),
                profile_name=str(profile),
            )
            builder = Builder(inputs)
            document = builder.build()
            files = write_report(document, out)
    except (ResultsError, ReportError, TraceError) as error:
        fail(str(error))
    _show(talk, document, files)
    if as_json:
        print_json(
            {
                "files": [str(f) for f in files],
                "figures": [
                    {"name": p.name, "title": p.title, "caption": p.caption} for p in document.plots
                ],
                "left_out": [{"title": x.title, "reason": x.reason} for x in document.left_out],
                "findings": document.findings,
                "notes": document.notes,
                "points": [as_json_record(p) for p in builder.points],
            }
        )


def _show(console: Console, document: Document, files: Sequence[Path]) -> None:
    """What was found, what is missing, and where to look."""
    for line in (*document.findings, *document.notes):
        console.print(f"* {line}", highlight=False, markup=False)
    for out in document.left_out:
        console.print(f"Left out: {out.title}: {out.reason}.", highlight=False, markup=False)
    count = len(document.plots)
    console.print(
        f"Written to {files[0]} (one page), {files[1].name} and {count} PNG files.",
        highlight=False,
        markup=False,
    )
