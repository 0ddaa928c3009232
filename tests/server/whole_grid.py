"""The whole grid of servers and settings at temperature 0, against no speculation.

    python -m tests.server.whole_grid --out out/grid.json

runs gamma x overlap x prefix cache x batch, then what can be changed at run time: verify mode x
gamma limit x overlap x batch, and no-draft switching. It takes hours, writes each row as soon as
it is known, and a second call goes on where the first one stopped. `--part 0/2` and `--part 1/2`
share the work between two calls, each with a file of its own; `--out all.json --merge a.json
b.json` puts them together. Exit status 0 when every row of the part is identical by the rule of
`sglang_dspark.profiling.equality`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby, product
from pathlib import Path
from typing import Any

from sglang_dspark.profiling.client import Client
from sglang_dspark.profiling.equality import Comparison
from sglang_dspark.profiling.server import Server
from tests.planted import Pair
from tests.server.grid import BATCHES, FULL, MODES, Control, Scale, Workload, compare_with
from tests.server.servers import COMPACT, STRICT, Spec, bundled_pair

ON_OFF = {True: "on", False: "off"}
MODE_BATCHES = (1, 8, 32)
FLAGS = ("--max-running-requests", "32")


@dataclass(frozen=True, slots=True)
class Row:
    """One comparison."""

    name: str
    spec: Spec
    scale: Scale
    batch: int
    steering: Mapping[str, Any] = field(default_factory=dict)  # set at run time


def gamma_rows() -> Iterator[Row]:
    """Static servers: gamma x overlap x prefix cache x batch."""
    for gamma, overlap, radix in product(range(1, 8), (True, False), (True, False)):
        name = f"gamma={gamma} overlap={ON_OFF[overlap]} cache={ON_OFF[radix]}"
        spec = Spec("text", gamma=gamma, overlap=overlap, radix=radix)
        for batch in BATCHES:
            yield Row(f"{name} batch={batch}", spec, FULL, batch)


def mode_rows() -> Iterator[Row]:
    """One server with and one without overlap: scheduled modes x gamma limit x batch, and drafting
    that stops and resumes in the middle of requests."""
    for overlap in (True, False):
        spec = Spec("text", overlap=overlap, environment=COMPACT, flags=FLAGS)
        choices = [
            (f"mode={mode} limit={limit}", mode, limit, "off")
            for mode, limit in product(("compact", "cap-accept"), range(1, 8))
        ]
        choices += [
            (f"mode={mode} no-draft=alternate", mode, 7, "alternate")
            for mode in ("static", "compact", "cap-accept")
        ]
        for (name, mode, limit, no_draft), batch in product(choices, MODE_BATCHES):
            steering = {
                "dspark_verify_mode": mode,
                "dspark_gamma_limit": limit,
                "dspark_no_draft": no_draft,
            }
            name = f"{name} overlap={ON_OFF[overlap]} batch={batch}"
            yield Row(name, spec, MODES, batch, steering)


def whole_grid() -> list[Row]:
    return [*gamma_rows(), *mode_rows()]


class Record:
    """The result file: rows by name, rewritten after each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._data: dict[str, Any] = {"pair": "examples/tiny", "rows": {}}
        if path.exists():
            self._data = json.loads(path.read_text())

    @property
    def rows(self) -> dict[str, Any]:
        rows: dict[str, Any] = self._data["rows"]
        return rows

    def add(self, row: Row, result: Comparison) -> None:
        self.rows[row.name] = {
            "identical": result.identical,
            "scale": asdict(row.scale),
            "prompts": result.prompts,
            "tokens": result.tokens,
            "excused_flips": result.excused_flips,
            "flips": [asdict(flip) | {"excused": flip.excused} for flip in result.flips],
        }
        self.write()

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._data, indent=1))


def serve(spec: Spec, pair: Pair, folder: Path) -> Server:
    environment = STRICT | dict(spec.environment) | {"XDG_CACHE_HOME": str(folder)}
    return Server(spec.command(pair), log=folder / "server.log", environment=environment)


def run(rows: Iterable[Row], pair: Pair, record: Record, folder: Path) -> None:
    """Run the rows that the record lacks; each server starts once."""
    missing = [row for row in rows if row.name not in record.rows]
    if not missing:
        return
    without = Spec("text", gamma=None, flags=FLAGS)
    with serve(without, pair, folder / "control") as server:
        client = Client(server.url)
        workloads = {row.scale: Workload(pair, row.scale) for row in missing}
        controls = {scale: Control(lambda: client, w) for scale, w in workloads.items()}
        for spec, group in groupby(missing, lambda row: row.spec):
            with serve(spec, pair, folder / "dspark") as speculating:
                for row in group:
                    steered = Client(speculating.url)
                    if row.steering:
                        steered.post("/set_internal_state", {"server_args": row.steering})
                    result = compare_with(
                        controls[row.scale], workloads[row.scale], steered, row.batch
                    )
                    record.add(row, result)
                    print(f"{row.name}: {result}", flush=True)


def part_of(rows: Sequence[Row], part: str) -> list[Row]:
    """`K/N`: every N-th server's rows, from the K-th on."""
    k, n = map(int, part.split("/"))
    specs = list(dict.fromkeys(row.spec for row in rows))
    mine = set(specs[k::n])
    return [row for row in rows if row.spec in mine]


def merge(record: Record, files: Iterable[Path]) -> None:
    for file in files:
        record.rows.update(json.loads(file.read_text())["rows"])
    record.write()


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/grid.json"))
    parser.add_argument("--part", default="0/1", help="K/N: only every N-th server, from the K-th")
    parser.add_argument("--merge", type=Path, nargs="+", default=[], help="files of other parts")
    arguments = parser.parse_args(argv)
    pair = bundled_pair()
    if pair is None:
        parser.error("the whole grid is for the trained pair, whose weights are missing")
    record = Record(arguments.out)
    merge(record, arguments.merge)
    rows = part_of(whole_grid(), arguments.part)
    if not arguments.merge:
        with tempfile.TemporaryDirectory() as folder:
            run(rows, pair, record, Path(folder))
    lacking = [row.name for row in rows if row.name not in record.rows]
    different = [row.name for row in rows if not record.rows.get(row.name, {}).get("identical")]
    print(f"{len(rows) - len(different)} of {len(rows)} rows are identical, {len(lacking)} not run")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
