"""What every command shares: where it prints, how it fails, how it is interrupted."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

PAIR = Path("examples") / "tiny"  # the bundled pair, in the repository
WRONG_USE, INTERRUPTED = 2, 130  # exit statuses; the second is what a shell reports after Ctrl-C

console = Console()
errors = Console(stderr=True)

Target = Annotated[
    Path | None, typer.Option(help="Folder of the target model; without it the bundled one.")
]
Draft = Annotated[
    Path | None, typer.Option(help="Folder of its DSpark draft; without it the bundled one.")
]
Json = Annotated[
    bool, typer.Option("--json", help="JSON on standard output; all else goes to standard error.")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files that exist.")]


def screen(as_json: bool) -> Console:
    """Where a command talks to a person: standard error when standard output carries JSON."""
    return errors if as_json else console


def print_json(record: Any) -> None:
    """One line of JSON on standard output."""
    sys.stdout.write(json.dumps(record) + "\n")


def fail(message: str, status: int = WRONG_USE) -> NoReturn:
    """Say why on standard error and end."""
    errors.print(f"[bold red]sglang-dspark:[/] {escape(message)}", highlight=False)
    raise typer.Exit(status)


def refuse_to_overwrite(force: bool, *files: Path) -> None:
    """End with status 2 if any of the files exists and the user did not say --force."""
    if not force and (found := [str(f) for f in files if f.exists()]):
        fail(f"{', '.join(found)} exists already: give --force to overwrite it, or another --out")


def command_line() -> str:
    """The command as typed, for provenance."""
    return " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])


def model_folder(option: str, given: Path | None, bundled: str) -> Path:
    """The folder that an option names, else the bundled one of a checkout of the repository."""
    if given is not None:
        if not given.is_dir():
            fail(f"{option} {given}: no such folder")
        return given
    for root in (Path(__file__).parents[2], Path.cwd()):
        folder = root / PAIR / bundled
        if folder.is_dir():
            return folder
    fail(
        f"the bundled {PAIR / bundled} comes with the repository, not with the installed package: "
        f"run this in a checkout, or give {option}"
    )


class _Interrupted(BaseException):
    """Not KeyboardInterrupt: Python may end by SIGINT after one although it was caught."""


@contextmanager
def interruptible() -> Iterator[None]:
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
