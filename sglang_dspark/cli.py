"""The console command `sglang-dspark`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from sglang_dspark import __version__

PAIR = Path("examples") / "tiny"  # the bundled pair, in the repository
INTERRUPTED = 130  # what a shell reports after Ctrl-C

app = typer.Typer(
    help="DSpark speculative decoding for stock SGLang.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)


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


Target = Annotated[
    Path | None, typer.Option(help="Folder of the target model; without it the bundled one.")
]
Draft = Annotated[
    Path | None, typer.Option(help="Folder of its DSpark draft; without it the bundled one.")
]


@app.command(
    epilog="Example: sglang-dspark demo --target models/Qwen3-0.6B --draft models/its-draft "
    "--prompts my_prompts"
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
    rounds: Annotated[int, typer.Option(min=2, help="Interleaved rounds.")] = 10,
    prompts_per_turn: Annotated[
        int, typer.Option(min=1, help="Prompts per round, domain and server.")
    ] = 2,
    max_new_tokens: Annotated[int, typer.Option(min=2, help="Longest answer.")] = 128,
    max_running_requests: Annotated[int, typer.Option(min=1, help="The same on both.")] = 8,
    out: Annotated[Path, typer.Option(help="Folder for demo.json and the logs.")] = Path("out"),
) -> None:
    """Serve one model twice, without speculation and with DSPARK, and compare.

    Prints answers, tokens/s, accept length and whether the outputs are token-identical.
    The exit status is 0 only if they are.
    """
    from sglang_dspark.profiling.client import RequestError
    from sglang_dspark.profiling.demo import DemoError, DemoPlan, run_demo
    from sglang_dspark.profiling.prompts import PromptError
    from sglang_dspark.profiling.report import as_record, summarize
    from sglang_dspark.profiling.server import ServerError
    from sglang_dspark.screen import DemoProgress, show_plan, show_result

    plan = DemoPlan(
        target=_folder("--target", target, "target"),
        draft=_folder("--draft", draft, "draft"),
        prompts=_folder("--prompts", prompts, "prompts"),
        out=out,
        rounds=rounds,
        prompts_per_turn=prompts_per_turn,
        max_new_tokens=max_new_tokens,
        max_running_requests=max_running_requests,
    )
    show_plan(console, plan)
    start = time.monotonic()
    try:
        with _interruptible(), DemoProgress(console) as progress:
            result = run_demo(plan, progress)
            numbers = summarize(result)
    except (PromptError, ServerError, RequestError, DemoError) as error:
        _fail(str(error))
    show_result(console, result, numbers)
    seconds = time.monotonic() - start
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])
    record = as_record(plan, result, numbers, command=command, seconds=seconds)
    file = out / "demo.json"
    file.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    console.print(f"Written to {file} after {seconds:.0f} s.", highlight=False)
    raise typer.Exit(0 if record["outputs_identical"] else 1)


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    epilog="Example: sglang-dspark serve --port 30000 --speculative-dspark-block-size 3",
)
def serve(
    context: typer.Context,
    target: Annotated[
        str | None,
        typer.Option(
            "--target",
            "--model",
            help="Target: a folder or a name of the hub; without it the bundled one.",
        ),
    ] = None,
    draft: Annotated[str | None, typer.Option(help="Its DSpark draft, likewise.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 30000,
) -> None:
    """Leave an SGLang server with DSPARK running; every other option goes to SGLang as it is."""
    from sglang_dspark.profiling.server import Server, ServerError

    if (target is None) != (draft is None):
        _fail("give both --target and --draft, or neither for the bundled pair")
    flags = ["--speculative-algorithm", "DSPARK", *context.args]
    if target is None or draft is None:
        flags += ["--dtype", "float32", "--sleep-on-idle"]
        target, draft = (str(_folder(f"--{n}", None, n)) for n in ("target", "draft"))
    flags = ["--model-path", target, "--speculative-draft-model-path", draft, *flags]
    server = Server(flags, log=None, port=port, environment={"HF_HUB_OFFLINE": _hub_offline()})
    try:
        with _interruptible(), server:
            _print_usage(server.url)
            server.wait_for_end()
    except ServerError as error:
        _fail(str(error))


def _folder(option: str, given: Path | None, bundled: str) -> Path:
    """The folder that an option names, else the bundled one of a checkout of the repository."""
    if given is not None:
        if not given.is_dir():
            _fail(f"{option} {given}: no such folder")
        return given
    for root in (Path(__file__).parents[1], Path.cwd()):
        folder = root / PAIR / bundled
        if folder.is_dir():
            return folder
    _fail(
        f"the bundled {PAIR / bundled} comes with the repository, not with the installed package: "
        f"run this in a checkout, or give {option}"
    )


def _fail(message: str) -> NoReturn:
    errors.print(f"[bold red]sglang-dspark:[/] {escape(message)}", highlight=False)
    raise typer.Exit(2)


class _Interrupted(BaseException):
    """Not KeyboardInterrupt: Python may end by SIGINT after one although it was caught."""


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM and a closed terminal end the block as Ctrl-C does; nothing cuts the cleaning up."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        for sign in signs:
            signal.signal(sign, signal.SIG_IGN)
        raise _Interrupted

    signs = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {sign: signal.signal(sign, interrupt) for sign in signs}
    try:
        yield
    except _Interrupted:
        errors.print("Interrupted; everything that was started has been stopped.")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)


def _hub_offline() -> str:
    return os.environ.get("HF_HUB_OFFLINE", "0")  # here a name of the hub may be downloaded


def _print_usage(url: str) -> None:
    body = json.dumps({"text": "def read_lines(path):", "sampling_params": {"temperature": 0}})
    console.rule(f"[bold]sglang-dspark: DSPARK is served at {url}[/]")
    for line in (
        f"curl {url}/generate -H 'Content-Type: application/json' \\",
        f"  -d '{body}'",
        f"OpenAI-compatible clients: {url}/v1",
        f"accept length and times:   {url}/server_info",
        "Ctrl-C stops the server.",
    ):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.rule()


def main() -> None:
    app()


if __name__ == "__main__":
    main()
