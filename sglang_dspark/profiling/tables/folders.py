"""Cost tables on this machine: those that ship with the package and those of the user's cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.core.cost_schema import parse_table
from sglang_dspark.core.cost_table import CostTable, CostTableError
from sglang_dspark.core.table_folders import cache_folder, shipped_folder


class TableFileError(ValueError):
    """There is no such table, or its file cannot be read; the text says what to give instead."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of one of the folders; `table` is None where `problem` says why."""

    origin: str  # shipped | cache
    path: Path
    table: CostTable | None
    problem: str | None

    @property
    def name(self) -> str:
        return self.path.stem


def entries() -> list[Entry]:
    """Every table of both folders, shipped ones first; a folder may be absent."""
    return list(_entries())


def _entries() -> Iterator[Entry]:
    for origin, folder in (("shipped", shipped_folder()), ("cache", cache_folder())):
        for path in sorted(folder.glob("*.json")):
            try:
                yield Entry(origin, path, parse_table(read(path)), None)
            except (CostTableError, TableFileError) as error:
                yield Entry(origin, path, None, str(error))


def find(name: str) -> Path:
    """The file that a user means: a path, else the name of a table of the two folders.

    Raises:
        TableFileError: neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    for folder in (shipped_folder(), cache_folder()):
        if (named := folder / f"{name.removesuffix('.json')}.json").is_file():
            return named
    raise TableFileError(
        f"{name}: neither a file nor the name of a table; `sglang-dspark tables list` shows the "
        "names"
    )


def read(path: Path) -> str:
    """A file's text. Raises TableFileError if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TableFileError(f"{path}: cannot be read ({error})") from None


def load(name: str) -> CostTable:
    """The table that a user means. Raises TableFileError, also for a content that is no table."""
    path = find(name)
    try:
        return parse_table(read(path))
    except CostTableError as error:
        raise TableFileError(f"{path}: not a cost table: {error}") from None
