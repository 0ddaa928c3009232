"""Reading what `sglang-dspark profile` left in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, ValidationError

from sglang_dspark.profiling.report.rounds import ReportError

FILE = "summary.json"


class Cell(BaseModel):
    """One measured cell and what the fitted table says of it."""

    step_ms: float = Field(gt=0)
    predicted_ms: float = Field(gt=0)
    held_out: bool  # not used in the fit


class Provenance(BaseModel):
    command: str


class ProfileSummary(BaseModel):
    """The fields that are read here."""

    schema_name: Literal["sglang-dspark/profile-summary"] = Field(alias="schema")
    details: list[Cell] = Field(min_length=1)
    provenance: Provenance


def read_profile(folder: Path) -> ProfileSummary:
    """The summary of a profile.

    Raises:
        ReportError: no such folder or file, or not a profile's summary.
    """
    file = folder / FILE
    try:
        return ProfileSummary.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(
            f"--profile {folder}: {FILE} cannot be read ({error}); "
            "give the --out folder of sglang-dspark profile"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ReportError(f"--profile {file}: {where}: {first['msg']}") from None
