"""STS temperatures: one per draft position, read and written in SGLang's own JSON.

    {"temperatures": [T_1..T_gamma], "dataset": "", "num_samples": 0,
     "ece_before": [], "ece_after": [], "provenance": {...}}

SGLang's reader ignores keys that it does not know, so a file of ours with `provenance` also
serves stock. Source: paper.md "Calibration", checkpoints.md 5.1.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class CalibrationError(ValueError):
    """The STS file cannot be used; the message says which field and what to do."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """c_k = sigmoid(logit_k / temperatures[k])."""

    temperatures: tuple[float, ...]  # [gamma], each finite and > 0
    dataset: str = ""  # what it was fitted on
    num_samples: int = 0  # blocks in the fit
    ece_before: tuple[float, ...] = ()  # [gamma] 0..1, of the cumulative product; may be empty
    ece_after: tuple[float, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not self.temperatures:
            raise CalibrationError("temperatures: empty, needs one per draft position")
        for k, t in enumerate(self.temperatures, 1):
            if not (math.isfinite(t) and t > 0):
                raise CalibrationError(f"temperatures: position {k} is {t}, must be above 0")
        for name in ("ece_before", "ece_after"):
            values = getattr(self, name)
            if values and len(values) != len(self.temperatures):
                raise CalibrationError(
                    f"{name}: {len(values)} values for {len(self.temperatures)} positions"
                )
            if not all(math.isfinite(v) and 0 <= v <= 1 for v in values):
                raise CalibrationError(f"{name}: {list(values)} is not within 0..1")
        if self.num_samples < 0:
            raise CalibrationError(f"num_samples: {self.num_samples} is negative")

    @property
    def gamma(self) -> int:
        return len(self.temperatures)


def identity(gamma: int) -> Calibration:
    """No calibration: every temperature is 1."""
    return Calibration((1.0,) * gamma)


def parse_calibration(text: str, gamma: int) -> Calibration:
    """Read SGLang's STS JSON, fitted for blocks of `gamma` drafts.

    Raises:
        CalibrationError: not JSON (a truncated file), a field of the wrong type or out of range,
            or another gamma.
    """
    try:
        raw = json.loads(text)
    except json.JSONDecodeError as error:
        raise CalibrationError(f"not JSON, perhaps truncated: {error}") from None
    if not isinstance(raw, dict) or "temperatures" not in raw:
        raise CalibrationError('temperatures: missing; expected {"temperatures": [...]}')
    found = Calibration(
        temperatures=_floats(raw, "temperatures"),
        dataset=_typed(raw, "dataset", str, ""),
        num_samples=_typed(raw, "num_samples", int, 0),
        ece_before=_floats(raw, "ece_before"),
        ece_after=_floats(raw, "ece_after"),
        provenance=_typed(raw, "provenance", dict, {}),
    )
    if found.gamma != gamma:
        raise CalibrationError(
            f"temperatures: fitted for gamma {found.gamma}, the draft has gamma {gamma}; "
            f"fit again or leave the file out"
        )
    return found


def load_calibration(path: str | Path, gamma: int) -> Calibration:
    """`parse_calibration` of a file; an unreadable one raises CalibrationError too."""
    try:
        return parse_calibration(Path(path).read_text(encoding="utf-8"), gamma)
    except (OSError, UnicodeDecodeError) as error:
        raise CalibrationError(f"{path}: cannot be read ({error})") from None
    except CalibrationError as error:
        raise CalibrationError(f"{path}: {error}") from None


def dump_calibration(calibration: Calibration) -> str:
    """JSON that stock SGLang reads as well."""
    record: dict[str, Any] = {
        "temperatures": list(calibration.temperatures),
        "dataset": calibration.dataset,
        "num_samples": calibration.num_samples,
        "ece_before": list(calibration.ece_before),
        "ece_after": list(calibration.ece_after),
    }
    if calibration.provenance:
        record["provenance"] = dict(calibration.provenance)
    return json.dumps(record, indent=2) + "\n"


def _floats(raw: dict[str, Any], key: str) -> tuple[float, ...]:
    values = _typed(raw, key, list, [])
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in values):
        raise CalibrationError(f"{key}: {values} is not a list of numbers")
    return tuple(float(v) for v in values)


def _typed(raw: dict[str, Any], key: str, kind: type, default: Any) -> Any:
    value = raw.get(key, default)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise CalibrationError(f"{key}: {value!r} is not a {kind.__name__}")
    return value
