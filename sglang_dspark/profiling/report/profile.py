"""Reading what `sglang-dspark profile` left in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field

from sglang_dspark.profiling.report.record import read_record

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
    return read_record(ProfileSummary, folder, FILE, "profile")
