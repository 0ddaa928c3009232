"""A record that another command wrote, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sglang_dspark.profiling.report.rounds import ReportError

R = TypeVar("R", bound=BaseModel)


def read_record(kind: type[R], folder: Path, name: str, command: str) -> R:
    """`name` in the output folder of `sglang-dspark <command>`.

    Raises:
        ReportError: no such folder or file, or not such a record; names the option.
    """
    file, option = folder / name, OPTIONS[command]
    try:
        return kind.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(
            f"{option} {folder}: {name} cannot be read ({error}); "
            f"give the --out folder of sglang-dspark {command}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ReportError(f"{option} {file}: {where}: {first['msg']}") from None


OPTIONS = {"calibrate": "--calibration", "profile": "--profile"}  # by the command that writes it
