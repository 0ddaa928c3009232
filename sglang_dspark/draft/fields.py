"""Typed access to a checkpoint's JSON: a wrong value is named together with its file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

DRAFT_PATH_FLAG = "--speculative-draft-model-path"

Choice = TypeVar("Choice", bound=str)


class CheckpointError(ValueError):
    """A draft checkpoint, or an option that contradicts it, cannot be served."""


@dataclass(frozen=True, slots=True)
class Fields:
    raw: Mapping[str, Any]
    file: Path

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def require(self, *names: str) -> None:
        if missing := [name for name in names if not self.has(name)]:
            raise CheckpointError(
                f"{self.file}: fields missing: {', '.join(missing)}; copy them from the training "
                "configuration of the draft"
            )

    def value(self, name: str) -> Any:
        self.require(name)
        return self.raw[name]

    def error(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(f"{self.file}: {name} is {self.raw[name]!r}, expected {expected}")

    def integer(self, name: str, *, minimum: int) -> int:
        value = self.value(name)
        if not is_int(value) or value < minimum:
            raise self.error(name, f"an integer of at least {minimum}")
        return int(value)

    def positive(self, name: str) -> float:
        value = self.value(name)
        if not is_number(value) or value <= 0:
            raise self.error(name, "a positive number")
        return float(value)

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def choice(self, name: str, choices: tuple[Choice, ...]) -> Choice:
        value = self.value(name)
        for choice in choices:
            if value == choice:
                return choice
        raise self.error(name, f"one of {', '.join(choices)}")

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.raw.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise self.error(name, "an object")
        return value or {}


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return (is_int(value) or isinstance(value, float)) and math.isfinite(value)  # type: ignore[arg-type]


def read_json_object(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise CheckpointError(f"{file}: no such file; {DRAFT_PATH_FLAG} must name its directory")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{file}: not readable as JSON ({error})") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{file}: holds {type(content).__name__}, expected a JSON object")
    return content
