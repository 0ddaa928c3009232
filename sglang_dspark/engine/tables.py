"""Which cost table a server uses: the one named, a matching one on disk, or one measured now."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.core.cost_table import CostTable
from sglang_dspark.core.cost_verdict import Server, examine
from sglang_dspark.core.table_folders import cache_folder, shipped_folder

logger = logging.getLogger(__name__)


class TableRefused(ValueError):
    """The cost table that the user named cannot steer this server; the text says why."""


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table, and how it came to be used."""

    name: str
    table: CostTable
    verdict: str  # use | warn
    reasons: tuple[str, ...]


def find_table(
    server: Server,
    named: str | None,
    measure: Callable[[], CostTable],
    *,
    known: bool = True,
) -> LoadedTable:
    """The table for `server`: `named`, else a match among shipped and cached ones, else measured.

    known: whether tables that were measured before may be used without being named.

    Raises:
        TableRefused: the named file cannot be read or does not fit; never falls back in silence.
    """
    if named is not None:
        return load_table(Path(named), server, named_by_user=True)
    for path in _candidates() if known else ():
        with suppress(TableRefused):
            return load_table(path, server, named_by_user=False)
    table = measure()
    path = store(table, server)
    return LoadedTable(path.name if path else "start-up (not stored)", table, "use", ())


def load_table(path: Path, server: Server, *, named_by_user: bool) -> LoadedTable:
    """One file, judged. Raises TableRefused."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TableRefused(f"cost table {path}: cannot be read ({error})") from None
    table, verdict = examine(text, server, named_by_user=named_by_user)
    reasons = tuple(str(finding) for finding in verdict.findings)
    if table is None or verdict.level == "refuse":
        raise TableRefused(
            f"cost table {path} does not fit this server: {'; '.join(reasons)}. Name another one "
            "with --speculative-dspark-sps-table-path, or leave the flag out to have one measured"
        )
    return LoadedTable(path.name, table, verdict.level, reasons)


def store(table: CostTable, server: Server) -> Path | None:
    """Write a measured table into the cache; None where that is not possible.

    Atomic: two servers that start together each leave a whole file, and the last one stays.
    """
    key = hashlib.sha256(repr(sorted(asdict(server).items())).encode()).hexdigest()[:16]
    path = cache_folder() / f"{key}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".part", delete=False
        ) as part:
            part.write(dump_table(table))
        os.replace(part.name, path)
    except OSError as error:
        logger.warning("sglang-dspark: the cost table was not stored in %s (%s)", path, error)
        return None
    return path


def _candidates() -> Iterator[Path]:
    for folder in (shipped_folder(), cache_folder()):
        with suppress(OSError):
            yield from sorted(folder.glob("*.json"))
