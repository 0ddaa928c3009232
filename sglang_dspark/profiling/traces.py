"""Reading the engine's per-step traces, every line checked.

A trace says what each decode step drafted, how sure the head was, and what came of it. How far a
block would have survived is known where all of it was judged (cap-accept, static), or where the
target rejected a draft inside the window; compact hides the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sglang_dspark.core.host_time import HostTime

SCHEMA = "sglang-dspark-trace-1"

Owner = tuple[int, int]  # (slot, generation): one request
R = TypeVar("R", bound=BaseModel)


class TraceError(ValueError):
    """A trace cannot be read, or does not hold what is asked of it; the text says which line."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True)


class TraceHeader(_Record):
    """First line: what was serving."""

    schema_name: Literal["sglang-dspark-trace-1"] = Field(alias="schema")
    worker: str
    gamma: int = Field(ge=1, description="drafts per block at start")
    lag: int = Field(ge=1, description="steps between a confidence and the budget it sets")
    max_requests: int = Field(ge=1)
    server: dict[str, Any]  # device, models and engine, as a cost table names them


class TraceStep(_Record):
    """One finished decode step; lists are per request of its batch, in slot order."""

    step: int
    slots: list[int] = Field(min_length=1)
    generations: list[int]
    context_tokens: int = Field(ge=0, description="committed tokens of the batch before the step")
    gamma: int = Field(ge=1, description="gamma limit")
    drafts: bool  # False: a no-draft step
    width: int = Field(ge=0, description="drafts per block that were made; 0 without drafts")
    budget: int
    predicted_ms: float | None = None  # of the whole step, the gap after it included
    gap_ms: float | None = None  # the engine's time since the step before
    worker_ms: float | None = None  # the whole step inside the worker
    reference_ms: float | None = None  # a fixed product right after the step
    accepted: list[int]  # committed drafts
    draft_lens: list[int]
    survival: list[list[float]] | None = None  # [bs][width] as the budget's top-K saw it
    confidence_logits: list[list[float]] | None = None  # [bs][width] raw
    ceiling: list[int] | None = None  # drafts that the whole block would have committed

    @model_validator(mode="after")
    def _lists_go_together(self) -> TraceStep:
        size, width = len(self.slots), self.width
        if not self.drafts <= width <= self.gamma * self.drafts:
            raise ValueError(f"width {width} with gamma {self.gamma}, drafts {self.drafts}")
        for name in ("generations", "accepted", "draft_lens", "ceiling"):
            values = getattr(self, name)
            if values is not None and len(values) != size:
                raise ValueError(f"{name} has {len(values)} values for {size} slots")
        for name in ("survival", "confidence_logits"):
            rows = getattr(self, name)
            if rows is not None and (len(rows) != size or any(len(row) != width for row in rows)):
                raise ValueError(f"{name} is not {size} rows of {width} values")
        most = self.ceiling or self.draft_lens
        for accepted, bound, length in zip(self.accepted, most, self.draft_lens, strict=True):
            if not 0 <= accepted <= min(bound, length) or max(bound, length) > width:
                raise ValueError(
                    f"accepted {accepted} of draft_len {length}, ceiling {bound}, block {width}"
                )
        return self

    @property
    def owners(self) -> list[Owner]:
        """[bs] the request of each row."""
        return list(zip(self.slots, self.generations, strict=True))

    @property
    def num_survived(self) -> list[int | None]:
        """[bs] drafts of each block that the target would have accepted; None: cut off unseen."""
        if self.ceiling is not None:
            return list(self.ceiling)
        return [
            accepted if accepted < length or length == self.width else None
            for accepted, length in zip(self.accepted, self.draft_lens, strict=True)
        ]


class Trace:
    """A whole trace."""

    def __init__(
        self, header: TraceHeader, steps: Iterable[TraceStep], *, truncated: bool, name: str
    ) -> None:
        """truncated: the file ends before the recording did."""
        self.header, self.steps = header, tuple(steps)
        self.truncated, self.name = truncated, name

    @property
    def most_requests(self) -> int:
        """Largest batch."""
        return max((len(step.slots) for step in self.steps), default=0)

    def learn_host_time(self, host: HostTime) -> None:
        """The engine's own time between steps, learned as the engine learns it."""
        for step in self.steps:
            if step.gap_ms is not None:
                host.add(len(step.slots), step.gap_ms)


def read_trace(path: Path, name: str | None = None) -> Trace:
    """A trace file; `name` is what it is called in results, else the file's stem.

    A last line that was cut off, as by the end of the server, makes the trace truncated.

    Raises:
        TraceError: unreadable, another schema, a malformed line, or no steps.
    """
    lines, cut_off = _lines(path)
    if not lines:
        raise TraceError(f"{path}: empty; expected a trace written by dspark_trace")
    header = _checked(TraceHeader, lines[0], path, 1)
    truncated = cut_off or lines[-1].startswith('{"truncated":')
    if not cut_off and truncated:
        del lines[-1]
    steps = [_checked(TraceStep, line, path, n) for n, line in enumerate(lines[1:], start=2)]
    if not steps:
        raise TraceError(f"{path}: no steps; was anything decoded while it was recorded?")
    return Trace(header, steps, truncated=truncated, name=name or path.stem)


def read_named_traces(given: Sequence[str]) -> dict[str, Trace]:
    """Traces by name, each given as FILE or NAME=FILE.

    Raises:
        TraceError: as `read_trace`, or one name twice.
    """
    traces: dict[str, Trace] = {}
    for text in given:
        name, equals, file = text.partition("=")
        path = Path(file if equals else text)
        trace = read_trace(path, name if equals else None)
        if trace.name in traces:
            raise TraceError(f"two traces are named {trace.name}: give NAME=FILE for one of them")
        traces[trace.name] = trace
    check_same_server(traces)
    return traces


def check_same_server(traces: Mapping[str, Trace]) -> None:
    """Raises TraceError unless all come from the same models and gamma."""
    first: Trace | None = None
    for trace in traces.values():
        first = first or trace
        for key in ("target", "draft", "gamma"):
            ours, theirs = (t.header.server.get(key) for t in (first, trace))
            if ours != theirs:
                raise TraceError(
                    f"{first.name} and {trace.name} differ in {key} ({ours}, {theirs}): "
                    "traces of one draft belong together"
                )


def _lines(path: Path) -> tuple[list[str], bool]:
    """Non-empty lines, and whether the last one was cut off (and is left out)."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise TraceError(f"{path}: cannot be read ({reason})") from None
    lines = [line for line in text.splitlines() if line.strip()]
    cut_off = len(lines) > 1 and not text.endswith("\n") and not lines[-1].endswith("}")
    return (lines[:-1] if cut_off else lines), cut_off


def _checked(kind: type[R], line: str, path: Path, number: int) -> R:
    try:
        return kind.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        text = first["msg"].removeprefix("Value error, ")
        hint = f"; expected a trace of schema {SCHEMA}" if kind is TraceHeader else ""
        place = f"{where}: " if where else ""
        raise TraceError(f"{path}, line {number}: {place}{text}{hint}") from None
