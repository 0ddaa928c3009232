"""`sglang-dspark demo`: the main job, on the bundled pair or on the user's."""

from __future__ import annotations

import json
import time
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
    refuse_to_overwrite,
    screen,
)


def demo(
    target: Target = None,
    draft: Draft = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help='Folder with code.jsonl and text.jsonl, a {"text": ...} a line; '
            "without it the bundled ones."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=2, help="Interleaved rounds.")] = 20,
    prompts_per_turn: Annotated[
        int, typer.Option(min=1, help="Prompts per round, domain and server.")
    ] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 128,
    max_running_requests: Annotated[int, typer.Option(min=1, help="The same on both.")] = 8,
    out: Annotated[Path, typer.Option(help="Folder for demo.json and the logs.")] = Path("out"),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Serve one model twice, without speculation and with DSPARK, and compare.

    Prints answers, tokens/s, accept length and whether the outputs are token-identical.
    The exit status is 0 only if they are.
    """
    from sglang_dspark.cli.demo_screen import DemoProgress, show_plan, show_result
    from sglang_dspark.profiling.client import RequestError
    from sglang_dspark.profiling.demo import DemoError, DemoPlan, run_demo
    from sglang_dspark.profiling.demo_record import as_record, summarize
    from sglang_dspark.profiling.prompts import PromptError
    from sglang_dspark.profiling.server import ServerError

    file, talk = out / "demo.json", screen(as_json)
    refuse_to_overwrite(force, file)
    plan = DemoPlan(
        target=model_folder("--target", target, "target"),
        draft=model_folder("--draft", draft, "draft"),
        prompts=model_folder("--prompts", prompts, "prompts"),
        out=out,
        rounds=rounds,
        prompts_per_turn=prompts_per_turn,
        max_new_tokens=max_new_tokens,
        max_running_requests=max_running_requests,
    )
    show_plan(talk, plan)
    start = time.monotonic()
    try:
        with interruptible(), DemoProgress(talk) as progress:
            result = run_demo(plan, progress)
            numbers = summarize(result)
    except (PromptError, ServerError, RequestError, DemoError) as error:
        fail(str(error))
    show_result(talk, result, numbers)
    seconds = time.monotonic() - start
    record = as_record(plan, result, numbers, command=command_line(), seconds=seconds)
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    talk.print(f"Written to {file} after {seconds:.0f} s.", highlight=False)
    if as_json:
        print_json(record)
    raise typer.Exit(0 if record["outputs_identical"] else 1)
