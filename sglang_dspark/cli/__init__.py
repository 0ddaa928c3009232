"""The console command `sglang-dspark`: one module per subcommand, joined here.

Nothing heavy is imported before a subcommand runs, so that `--help` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from sglang_dspark import __version__
from sglang_dspark.cli.common import console
from sglang_dspark.cli.demo import demo
from sglang_dspark.cli.serve import serve

app = typer.Typer(
    help="DSpark speculative decoding for stock SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
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


def main() -> None:
    app()
