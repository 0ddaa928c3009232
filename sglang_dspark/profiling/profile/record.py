"""`samples.jsonl`: a header, then every group of every repeat as it was measured.

A line is written when its group is complete, so an interrupted run loses one group at most.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from sglang_dspark.profiling.profile.cells import Cell, Group, Plan
from sglang_dspark.profiling.profile.lines import StepLine
from sglang_dspark.profiling.profile.speed import MachineSpeed

SCHEMA: Literal["sglang-dspark/profile-samples"] = "sglang-dspark/profile-samples"


class SamplesError(ValueError):
    """A file of samples cannot be read or continued; the text says why."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


R = TypeVar("R", bound=_Record)


class CellSteps(_Record):
    """One cell in one repeat."""

    budget: int | None  # drafts over the batch; None: a no-draft step
    width: int | None  # drafts per block; None: the whole trained one
    steps: list[StepLine]  # timed, outliers included
    failed: str | None = None  # why there are fewer steps than planned


class GroupSteps(_Record):
    """One group in one repeat."""

    kind: Literal["group"] = "group"
    repeat: int
    requests: int
    context: int
    seconds: float  # that it took
    cells: list[CellSteps]


class Header(_Record):
    """First line: what was measured, where, and how."""

    kind: Literal["header"] = "header"
    format: Literal["sglang-dspark/profile-samples"] = SCHEMA
    version: Literal[1] = 1
    columns: list[str] = list(StepLine._fields)  # of one step below
    plan: dict[str, Any]  # as `plan_record` gives it
    server: dict[str, Any]  # identity, as in a cost table's provenance
    machine: dict[str, Any]
    versions: dict[str, str]
    command: str
    date: str  # ISO 8601


class Samples:
    """Everything measured so far."""

    def __init__(self, header: Header, groups: Iterable[GroupSteps] = ()) -> None:
        self.header, self.groups = header, list(groups)

    @property
    def seconds(self) -> float:
        """Spent on measuring, over all runs."""
        return sum(g.seconds for g in self.groups)

    @property
    def repeats(self) -> int:
        """That were begun."""
        return 1 + max((g.repeat for g in self.groups), default=-1)

    def has(self, group: Group, repeat: int) -> bool:
        key = (repeat, group.requests, group.context)
        return any((g.repeat, g.requests, g.context) == key for g in self.groups)

    @property
    def speed(self) -> MachineSpeed | None:
        """Of the machine, over everything measured so far; None: the server was not asked."""
        return MachineSpeed.of(
            c.steps for group in self.groups for c in group.cells if c.failed is None
        )

    def repeats_of(self, cell: Cell, speed: MachineSpeed | None) -> list[list[StepLine]]:
        """The steps of each repeat in which the cell did not fail, at the machine's usual speed."""
        visits = [c.steps for c in self._of(cell) if c.failed is None]
        return visits if speed is None else [speed.steady(lines) for lines in visits]

    def failure(self, cell: Cell) -> str | None:
        """Why a cell failed last; None if it never did."""
        reasons = [c.failed for c in self._of(cell) if c.failed is not None]
        return reasons[-1] if reasons else None

    def _of(self, cell: Cell) -> Iterator[CellSteps]:
        for group in self.groups:
            if (group.requests, group.context) == (cell.requests, cell.context):
                yield from (
                    c for c in group.cells if (c.budget, c.width) == (cell.budget, cell.width)
                )


def plan_record(plan: Plan) -> dict[str, Any]:
    """What two runs must have in common to be one."""
    return {
        "groups": [
            [g.requests, g.context, [[c.budget, c.width] for c in g.cells]] for g in plan.groups
        ],
        "held_out_context": plan.held_out_context,
        "steps": plan.steps,
    }


class SamplesFile:
    """The file on disk, written line by line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def start(self, header: Header) -> None:
        """A new file with its header; an old one is replaced."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(header.model_dump_json() + "\n", encoding="utf-8")

    def append(self, group: GroupSteps) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(group.model_dump_json() + "\n")

    def resume(self, header: Header) -> Samples:
        """What is there already, where it belongs to the same plan and server.

        A last line that was cut off is removed.

        Raises:
            SamplesError: unreadable, or of another plan or server.
        """
        samples = read_samples(self.path)
        for what in ("plan", "server"):
            old, new = getattr(samples.header, what), getattr(header, what)
            if old != new:
                differ = [k for k in new if old.get(k) != new[k]]
                raise SamplesError(
                    f"--resume: {self.path} was measured with another {what} "
                    f"({', '.join(differ)}); give --force to start anew, or another --out"
                )
        lines = [samples.header.model_dump_json(), *(g.model_dump_json() for g in samples.groups)]
        part = self.path.with_suffix(".part")  # an interrupt must not leave half of the file
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
        part.replace(self.path)
        return samples


def read_samples(path: Path) -> Samples:
    """A file of samples; a last line that was cut off while it was written is left out.

    Raises:
        SamplesError: unreadable, no header, a malformed line.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError as error:
        raise SamplesError(f"{path}: cannot be read ({error.strerror})") from None
    whole = [line for line in lines if line.endswith("\n")]
    if not whole:
        raise SamplesError(f"{path}: no header line; is this a file of `profile`?")
    header = _parse(Header, path, 1, whole[0])
    return Samples(header, [_parse(GroupSteps, path, n, x) for n, x in enumerate(whole[1:], 2)])


def _parse(kind: type[R], path: Path, number: int, line: str) -> R:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        raise SamplesError(f"{path}, line {number}: {error.errors()[0]['msg']}") from None
