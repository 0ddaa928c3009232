"""What a sweep measures: a TOML file, checked before anything starts.

    rounds = 10
    concurrency = [1, 4, 16]
    arms = ["no-speculation", "static-7", "compact"]

    [[workloads]]
    name = "code"
    domains = ["code"]

An arm is a name that says what it is, or a table. `static-3` drafts and verifies 3 a step, and
`no-speculation-b` is a second arm of the same kind: the A/A test of the instrument. Any other
SGLang algorithm is a table with `flags`.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sglang_dspark.profiling.sweep.choice import CHALLENGER, FIXED

Kind = Literal["no-speculation", "static", "compact", "cap-accept", "no-draft", "sglang"]
NAME = re.compile(
    r"(?P<kind>no-speculation|no-draft|cap-accept|compact|static-(?P<gamma>\d+))(-[a-z]\w*)?"
)


class PlanError(ValueError):
    """A plan that cannot be measured; the text says where it is wrong."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArmPlan(_Strict):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    kind: Kind
    gamma: int | None = Field(default=None, ge=1, description="gamma limit; static only")
    flags: list[str] = Field(default=[], description="of SGLang; kind sglang only")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        match = NAME.fullmatch(given)
        if match is None:
            raise ValueError(
                f"arm {given!r}: expected no-speculation, static-<gamma>, compact, cap-accept or "
                "no-draft (and -b, -c behind it for a second one), or a table with name and kind"
            )
        gamma = match["gamma"]
        kind = "static" if gamma else match["kind"]
        return {"name": given, "kind": kind, "gamma": int(gamma) if gamma else None}

    @model_validator(mode="after")
    def _parts_go_together(self) -> ArmPlan:
        if self.gamma is not None and self.kind != "static":
            raise ValueError(f"arm {self.name}: gamma is for static arms")
        if bool(self.flags) != (self.kind == "sglang"):
            raise ValueError(f"arm {self.name}: flags and kind = 'sglang' go together")
        return self

    @property
    def control(self) -> dict[str, Any]:
        """Run-time settings of this arm on the DSPARK server; every key, so none is left over."""
        mode = "static" if self.kind == "no-draft" else self.kind
        return {
            "dspark_verify_mode": mode,
            "dspark_gamma_limit": self.gamma,
            "dspark_budget": None,
            "dspark_no_draft": {"no-draft": "on", "static": "off"}.get(self.kind),
        }


class WorkloadPlan(_Strict):
    """Prompts of one kind. Exactly one source: domains, files or random lengths."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    domains: list[str] = Field(
        default=[], description="of the prompts folder: `code` is code.jsonl; several are mixed"
    )
    files: list[Path] = Field(default=[], description="JSONL files of `turns` or `text`; mixed")
    random_tokens: tuple[int, int] | None = Field(
        default=None, description="shortest and longest prompt of random token ids"
    )
    max_new_tokens: int | None = Field(default=None, ge=1, description="else the plan's")

    @model_validator(mode="after")
    def _one_source(self) -> WorkloadPlan:
        if sum(map(bool, (self.domains, self.files, self.random_tokens))) != 1:
            raise ValueError(f"workload {self.name}: give one of domains, files, random_tokens")
        if self.random_tokens and not 1 <= self.random_tokens[0] <= self.random_tokens[1]:
            raise ValueError(f"workload {self.name}: random_tokens = [shortest, longest]")
        return self


class SweepPlan(_Strict):
    """Everything that a sweep does; no default is hidden, the result's header shows them all."""

    arms: list[ArmPlan] = Field(min_length=1)
    workloads: list[WorkloadPlan] = Field(min_length=1)
    concurrency: list[int] = Field(min_length=1)
    rounds: int = Field(default=10, ge=1)
    choose_rounds: int | None = Field(
        default=None,
        ge=1,
        description="the first rounds, of every arm; the later ones run compact and the one of "
        "no-speculation and the static arms that was the fastest at that point",
    )
    repeats: int = Field(default=1, ge=1, description="of every point, each with its own rounds")
    requests_per_slot: float = Field(
        default=2.0, gt=0, description="requests of a turn, times the concurrency"
    )
    least_requests: int = Field(default=2, ge=1, description="of a turn")
    max_new_tokens: int = Field(default=64, ge=1)
    ignore_eos: bool = True
    sampling: dict[str, Any] = Field(
        default={"temperature": 0}, description="SGLang's sampling parameters"
    )
    max_running_requests: int | None = Field(
        default=None, ge=1, description="of every server; not given: the largest concurrency"
    )
    server_flags: list[str] = Field(
        default=["--dtype", "float32", "--random-seed", "0"], description="of every server"
    )
    seed: int = 0

    @model_validator(mode="after")
    def _names_are_unique(self) -> SweepPlan:
        for what, names in (
            ("arm", [a.name for a in self.arms]),
            ("workload", [w.name for w in self.workloads]),
        ):
            if twice := [name for name, n in Counter(names).items() if n > 1]:
                raise ValueError(f"{what} {twice[0]} is there twice")
        if min(self.concurrency) < 1 or len(set(self.concurrency)) < len(self.concurrency):
            raise ValueError(f"concurrency {self.concurrency}: numbers from 1, each once")
        return self

    @model_validator(mode="after")
    def _there_is_something_to_choose(self) -> SweepPlan:
        if self.choose_rounds is None:
            return self
        if self.choose_rounds >= self.rounds:
            raise ValueError(
                f"choose_rounds {self.choose_rounds}: of {self.rounds} rounds none is left that "
                "compares"
            )
        if self.repeats > 1:
            # Each repeat would choose for itself, and the report knows one best arm per point.
            raise ValueError("choose_rounds and repeats do not go together: give more rounds")
        if not (self.of_kind(CHALLENGER) and self.of_kind(*FIXED)):
            raise ValueError("choose_rounds needs a compact arm, and a fixed one to choose")
        return self

    def of_kind(self, *kinds: str) -> list[str]:
        """Names of the arms of these kinds."""
        return [arm.name for arm in self.arms if arm.kind in kinds]

    @property
    def most_requests(self) -> int:
        """`--max-running-requests`, the same on every server."""
        return self.max_running_requests or max(self.concurrency)

    def num_requests(self, concurrency: int) -> int:
        """Requests of one turn."""
        return max(self.least_requests, round(self.requests_per_slot * concurrency))

    def sampling_of(self, workload: WorkloadPlan) -> dict[str, Any]:
        """Every effective sampling value of a workload."""
        return {
            "max_new_tokens": workload.max_new_tokens or self.max_new_tokens,
            "ignore_eos": self.ignore_eos,
            **self.sampling,
        }

    def turns(self, num_arms: int | None = None) -> int:
        """Of the whole sweep. num_arms: those whose servers run; None: all of the plan."""
        num_arms = len(self.arms) if num_arms is None else num_arms
        points = len(self.workloads) * len(self.concurrency) * self.repeats
        if self.choose_rounds is None:
            return points * self.rounds * num_arms
        comparing = (self.rounds - self.choose_rounds) * (len(self.of_kind(CHALLENGER)) + 1)
        return points * (self.choose_rounds * num_arms + comparing)


def read_plan(path: Path, rounds: int | None = None) -> SweepPlan:
    """rounds: in place of the plan's.

    Raises PlanError: unreadable, not TOML, or a plan that makes no sense.
    """
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"{path}: cannot be read ({error.strerror})") from None
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{path}: not TOML: {error}") from None
    if rounds is not None:
        raw["rounds"] = rounds
    try:
        return SweepPlan.model_validate(raw)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'plan'}: {e['msg'].removeprefix('Value error, ')}"
            for e in error.errors()
        )
        raise PlanError(f"{path}: {problems}") from None
