"""The result file of a sweep: JSON lines, one header, then one line per turn.

A *turn* is one arm answering one set of prompts at one concurrency; a *round* is one turn of every
arm on the same prompts, in an order that changes from round to round. Rounds are what is compared
and what an interrupted sweep goes on from. The schema is the types below.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

SCHEMA: Literal["sglang-dspark/sweep"] = "sglang-dspark/sweep"


class ResultsError(ValueError):
    """A result file cannot be read; the text says which line and why."""


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArmRecord(_Record):
    """One way of serving that is compared with others."""

    name: str  # no-speculation, static-7, compact, ...
    server: str  # which of the sweep's servers answers
    control: dict[str, Any] = {}  # run-time settings (`/set_internal_state`) of this arm


class ServerRecord(_Record):
    """One server of the sweep, as it was started."""

    name: str
    flags: list[str]
    environment: dict[str, str] = {}
    worker: str | None = None  # what our worker calls itself; None where another one serves
    gamma: int | None = None
    cost_table: str | None = None
    calibration: str | None = None


class Header(_Record):
    """First line."""

    kind: Literal["header"] = "header"
    format: Literal["sglang-dspark/sweep"] = SCHEMA
    version: Literal[1] = 1
    plan: dict[str, Any]  # the plan file, every default filled in
    servers: list[ServerRecord]
    arms: list[ArmRecord]
    target: str
    draft: str
    machine: dict[str, Any]
    versions: dict[str, str]
    command: str
    date: str  # ISO 8601


class Skipped(_Record):
    """An arm that this machine cannot run."""

    kind: Literal["skipped"] = "skipped"
    arm: str
    reason: str


class RequestRecord(_Record):
    """One request as the client saw it; seconds since it was sent."""

    tokens: int
    seconds: float
    first_token_s: float | None = None  # None: all tokens came in one piece
    error: str | None = None
    spec_verify_ct: int | None = None  # SGLang's own count of verify steps


class WorkerRecord(_Record):
    """What the DSpark worker counted during the turn; sums, not ratios."""

    steps: int
    no_draft_steps: int
    verified_requests: int  # (request, step) pairs that went through verification
    drafted: int
    verified_drafts: int
    accepted_drafts: int
    accepted_histogram: list[int]  # [gamma + 1] pairs by accepted drafts
    draft_len_histogram: list[int]  # [gamma + 1] pairs by verified drafts
    planned_rows: int
    ceiling_drafts: int  # what whole blocks would have committed; cap-accept only
    ceiling_requests: int
    priced_steps: int  # steps with a prediction
    predicted_ms: float  # sum over the priced steps
    actual_ms: float
    step_seconds: float
    draft_forward_seconds: float
    target_forward_seconds: float
    step_reasons: dict[str, int] = {}


class Turn(_Record):
    """One arm's turn of a round."""

    kind: Literal["turn"] = "turn"
    round: int
    workload: str
    concurrency: int
    repeat: int = 0  # of the same point, where the plan repeats points
    arm: str
    order: int  # place inside the round, from 0
    seconds: float  # first request sent to last answer complete
    sampling: dict[str, Any]  # every effective sampling value
    requests: list[RequestRecord]
    worker: WorkerRecord | None = None
    draft_lens_by_domain: dict[str, float] = Field(
        default={}, description="mean draft_len by domain, of mixed workloads"
    )

    @property
    def tokens(self) -> int:
        """Of the requests that were answered."""
        return sum(r.tokens for r in self.requests if r.error is None)

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds


class Results:
    """A whole result file."""

    def __init__(
        self, header: Header, turns: Iterable[Turn], skipped: Iterable[Skipped] = ()
    ) -> None:
        self.header, self.turns, self.skipped = header, tuple(turns), tuple(skipped)

    @property
    def workloads(self) -> tuple[str, ...]:
        """In the order of the file."""
        return tuple(dict.fromkeys(t.workload for t in self.turns))

    @property
    def concurrencies(self) -> tuple[int, ...]:
        return tuple(sorted({t.concurrency for t in self.turns}))

    @property
    def arms(self) -> tuple[str, ...]:
        """Those that have turns, in the order of the header."""
        seen = {t.arm for t in self.turns}
        return tuple(a.name for a in self.header.arms if a.name in seen)

    def rounds(self, workload: str, concurrency: int, arm: str) -> list[Turn]:
        """Turns of one arm at one point, in round order (repeats one after another)."""
        found = (
            t
            for t in self.turns
            if (t.workload, t.concurrency, t.arm) == (workload, concurrency, arm)
        )
        return sorted(found, key=lambda t: (t.repeat, t.round))


def read_results(path: Path) -> Results:
    """A result file, checked against the schema.

    Raises:
        ResultsError: unreadable, no header, a malformed line.
    """
    header: Header | None = None
    turns: list[Turn] = []
    skipped: list[Skipped] = []
    for number, record in _lines(path):
        try:
            match record.get("kind"):
                case "header":
                    header = Header.model_validate(record)
                case "turn":
                    turns.append(Turn.model_validate(record))
                case "skipped":
                    skipped.append(Skipped.model_validate(record))
                case other:
                    raise ResultsError(f"{path}, line {number}: unknown kind {other!r}")
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ResultsError(f"{path}, line {number}: {where}: {first['msg']}") from None
    if header is None:
        raise ResultsError(f"{path}: no header line; is this the result of a sweep?")
    return Results(header, turns, skipped)


def _lines(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read ({error.strerror})") from None
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ResultsError(f"{path}, line {number}: not JSON ({error})") from None
        if not isinstance(record, dict):
            raise ResultsError(f"{path}, line {number}: not a JSON object")
        yield number, record
