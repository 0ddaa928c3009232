"""`sglang-dspark serve`: leave a server running."""

from __future__ import annotations

import json
import os
from typing import Annotated

import typer

from sglang_dspark.cli.common import console, fail, interruptible, model_folder


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
        fail("give both --target and --draft, or neither for the bundled pair")
    flags = ["--speculative-algorithm", "DSPARK", *context.args]
    if target is None or draft is None:
        flags += ["--dtype", "float32", "--sleep-on-idle"]
        target, draft = (str(model_folder(f"--{n}", None, n)) for n in ("target", "draft"))
    flags = ["--model-path", target, "--speculative-draft-model-path", draft, *flags]
    server = Server(flags, log=None, port=port, environment={"HF_HUB_OFFLINE": _hub_offline()})
    try:
        with interruptible(), server:
            _print_usage(server.url)
            server.wait_for_end()
    except ServerError as error:
        fail(str(error))


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
