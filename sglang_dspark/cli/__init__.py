"""The console command `sglang-dspark`: one module per subcommand, joined here.

Nothing heavy is imported before a subcommand runs, so that `--help` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sglang_dspark import __version__
from sglang_dspark.cli.calibrate import calibrate
from sglang_dspark.cli.common import console
from sglang_dspark.cli.demo import demo
from sglang_dspark.cli.doctor import doctor
from sglang_dspark.cli.profile import profile
from sglang_dspark.cli.report import report
from sglang_dspark.cli.serve import serve
from sglang_dspark.cli.simulate import simulate
from sglang_dspark.cli.sweep import sweep
from sglang_dspark.cli.tables import tables

app = typer.Typer(
    help="DSpark speculative decoding for stock SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# SGLang's flags stand behind `--`; an unknown option before it is refused.
AFTER_DASHES = {"allow_extra_args": True}
SGLANG_FLAGS = {"allow_extra_args": True, "ignore_unknown_options": True}  # what follows is its own


def _print_version(asked: bool) -> None:
    if asked:
        console.print(f"sglang-dspark {__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print and exit."),
    ] = False,
) -> None:
    """DSpark speculative decoding for stock SGLang."""


app.command(
    epilog="Example: sglang-dspark demo --target models/Qwen3-0.6B --draft models/its-draft "
    "--prompts my_prompts"
)(demo)
app.command(
    context_settings=SGLANG_FLAGS,
    epilog="Example: sglang-dspark serve --port 30000 --speculative-dspark-block-size 3",
)(serve)
app.command(
    context_settings=AFTER_DASHES,
    epilog="Example: sglang-dspark profile --target models/Qwen3-0.6B --draft models/its-draft "
    "--full --out out/profile -- --dtype bfloat16",
)(profile)
app.command(
    context_settings=AFTER_DASHES,
    epilog="Example: sglang-dspark doctor --target models/Qwen3-0.6B --draft models/its-draft "
    "-- --max-running-requests 16",
)(doctor)
app.command(
    epilog="Example: sglang-dspark sweep profiling/plans/bundled.toml --out out/sweep.jsonl"
)(sweep)
app.command(
    epilog="Example: sglang-dspark report out/sweep.jsonl --calibration out/calibrate "
    "--trace out/traces/code.jsonl --out out/report"
)(report)
app.command(
    epilog="Example: sglang-dspark calibrate --record --min-rounds 20000 --out out/calibration"
)(calibrate)
app.command(
    epilog="Example: sglang-dspark simulate code=out/calibration/traces/code.jsonl "
    "--table table.json --concurrency 1 --concurrency 16"
)(simulate)
app.add_typer(tables, name="tables", epilog="Example: sglang-dspark tables list")


def main() -> None:
    app()
