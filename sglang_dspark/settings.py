"""Every choice of the user that SGLang has no flag for: one file, read once, refused when wrong."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

VARIABLE = "SGLANG_DSPARK_CONFIG"


class SettingsError(ValueError):
    """The settings file cannot be read, or says something we do not know."""


class NoDraft(BaseModel):
    """Which steps are taken as plain decode (no draft forward, one row per request)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Literal["off", "on", "auto", "alternate"] | None = Field(
        default=None,
        description=(
            "off: every step drafts; on: none does; auto: the cost table decides; alternate: "
            "`period` steps each way; not given: auto where a cost table prices it, else off"
        ),
    )
    period: int = Field(default=1, ge=1, description="steps of each kind under `alternate`")


class TraceSettings(BaseModel):
    """Per-step traces, switched on at run time by name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Path | None = Field(
        default=None, description="where traces may be written; not given: nowhere"
    )
    max_mb: int = Field(default=64, ge=1, description="a trace stops growing at this size")
    reference: bool = Field(
        default=False,
        description=(
            "time a fixed matrix product after every traced step of a CPU server, about 1 ms, to "
            "tell a slow step from a slow moment of the machine; `profile` does"
        ),
    )


class ControlSettings(BaseModel):
    """What run-time control may name: files of these folders, without their `.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cost_tables: Path | None = Field(default=None, description="folder of cost tables")
    calibrations: Path | None = Field(default=None, description="folder of STS files")


class Settings(BaseModel):
    """The settings file. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    no_draft: NoDraft = NoDraft()
    trace: TraceSettings = TraceSettings()
    scheduler: Literal["lagged", "algorithm-1"] = Field(
        default="lagged",
        description=(
            "lagged: budgets from confidences of earlier steps; algorithm-1: the paper's "
            "synchronous rule, which waits for the confidences of every step"
        ),
    )
    control: ControlSettings = ControlSettings()
    cost_table: Literal["auto", "measure", "off"] = Field(
        default="auto",
        description=(
            "auto: the table named on the command line, else a matching one on disk, else one "
            "measured at start-up; measure: the same without a look at the disk; off: none, every "
            "draft is verified"
        ),
    )

    @model_validator(mode="after")
    def _algorithm_1_prices_and_drafts(self) -> Settings:
        if self.scheduler == "algorithm-1" and self.no_draft.mode == "auto":
            raise ValueError(
                "scheduler algorithm-1 always drafts: no_draft.mode auto is for lagged"
            )
        if self.scheduler == "algorithm-1" and self.cost_table == "off":
            raise ValueError("scheduler algorithm-1 needs a cost table: set cost_table = 'auto'")
        return self


def load_settings(path: str | None = None) -> Settings:
    """Settings from `path`, else from the file that SGLANG_DSPARK_CONFIG names, else defaults.

    Args:
        path: a .toml or .json file.

    Raises:
        SettingsError: no such file, not TOML or JSON, an unknown key or a value out of range.
    """
    chosen = path if path is not None else os.environ.get(VARIABLE)
    if not chosen:
        return Settings()
    file = Path(chosen)
    try:
        text = file.read_text(encoding="utf-8")
        raw = json.loads(text) if file.suffix == ".json" else tomllib.loads(text)
        return Settings.model_validate(raw)
    except OSError as error:
        raise SettingsError(f"{VARIABLE}={chosen}: cannot be read ({error.strerror})") from None
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingsError(f"{chosen}: not a {file.suffix or '.toml'} file: {error}") from None
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'top level'}: {e['msg']}" for e in error.errors()
        )
        raise SettingsError(f"{chosen}: {problems}") from None
