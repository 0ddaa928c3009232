"""What the checks look at. Records that cross from the probe's process are JSON."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Facts(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Installation(Facts):
    """Read in the process of the command, without torch or SGLang."""

    python: tuple[int, int, int]
    versions: dict[str, str | None]  # package -> installed version, None: not there
    wanted: dict[str, str]  # package -> version range that SGLang asks for
    tested_sglang: tuple[str, ...]
    environment: dict[str, str]  # variables that steer SGLang, this package or torch
    settings_error: str | None
    settings_changed: dict[str, str]  # settings that differ from the default


class Target(Facts):
    folder: str | None  # None: not on this machine
    named: str
    error: str | None = None  # SGLang cannot read its configuration
    architecture: str = ""
    context_len: int = 0  # tokens of one request, as served
    dtype: str = ""  # as served
    weight_bytes: int = 0  # as served
    kv_bytes_per_token: int = 0  # K and V of all layers


class Draft(Facts):
    folder: str | None
    error: str | None = None  # the checkpoint, or an option that contradicts it, is refused
    gamma: int = 0  # drafts per block, as served
    trained_gamma: int = 0
    markov: str = ""
    has_confidence: bool = False
    context_len: int = 0  # positions that it was made for; below the target's it is refused
    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    warning: str | None = None  # it was trained beside a related target


class Served(Facts):
    """What SGLang would set up; only where the flags are accepted."""

    platform: str  # class of SGLang's platform object
    device: str
    attention: str
    captures_graphs: bool
    overlaps: bool
    max_running_requests: int
    pool_tokens: int | None  # None: SGLang takes a share of the memory
    mode: str
    mode_reason: str
    modes: tuple[str, ...]  # that run-time control may choose
    schedules: bool  # whether the mode asks for a cost table


class Table(Facts):
    """The cost table that a server would use; only in a mode that schedules."""

    named: str | None
    switched_off: bool = False
    name: str | None = None  # None with no error: one is measured at start
    verdict: str = ""
    reasons: tuple[str, ...] = ()
    error: str | None = None


class Calibration(Facts):
    named: str
    error: str | None = None
    dataset: str = ""
    num_samples: int = 0


class Machine(Facts):
    accelerator: bool
    intree_cpu: bool  # an sgl_kernel built for CPUs
    disabled: bool  # SGLANG_DSPARK_DISABLE=1
    memory_total: int  # bytes; of the accelerator where there is one
    memory_free: int
    cores: int  # that this process may use


class Probed(Facts):
    """What a process that loads SGLang as a server does found out."""

    machine: Machine
    mismatches: tuple[str, ...]  # private names of SGLang that are not as the seam knows them
    entry_points: dict[str, str | None]  # plugin, platform -> what SGLang finds of this package
    plugin_ran: bool
    algorithm: str | None  # as the flags say
    parse_error: str | None  # the flags are none that SGLang knows
    refused: tuple[str, ...]  # flags and variables that this package does not support
    start_error: str | None  # what else ends the start
    worker: str | None  # class that would serve
    target: Target | None
    draft: Draft | None
    served: Served | None
    table: Table | None
    calibration: Calibration | None
    server: dict[str, str | int] | None  # identity, as a cost table must have it


class Case(Facts):
    """Everything, for the checks."""

    installation: Installation
    probed: Probed | None
    probe_error: str | None  # why there is no `probed`
