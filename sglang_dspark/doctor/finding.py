"""What a check says, and what all of them say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]
Verdict = Literal["will-run", "will-run-with-warnings", "will-be-refused"]

STATUS: dict[Verdict, int] = {"will-run": 0, "will-run-with-warnings": 1, "will-be-refused": 3}


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    topic: str  # what was looked at; a key of `judge.GROUPS`
    text: str  # what was found
    advice: str = ""  # what to change; given with every warning and problem that has a remedy


def ok(topic: str, text: str) -> Finding:
    return Finding("ok", topic, text)


def warning(topic: str, text: str, advice: str = "") -> Finding:
    return Finding("warning", topic, text, advice)


def problem(topic: str, text: str, advice: str = "") -> Finding:
    return Finding("problem", topic, text, advice)


def verdict(findings: Sequence[Finding]) -> Verdict:
    levels = {finding.level for finding in findings}
    if "problem" in levels:
        return "will-be-refused"
    return "will-run-with-warnings" if "warning" in levels else "will-run"
