"""A process that loads SGLang as a server would, looks, and writes what it found.

python -m sglang_dspark.doctor.probe OUT.json FLAGS...
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from sglang_dspark.core.cost_verdict import Server
from sglang_dspark.cpu import activation, threads
from sglang_dspark.doctor.checkpoints import look_at_draft, weight_elements
from sglang_dspark.doctor.facts import Machine, Probed, Served, Target
from sglang_dspark.doctor.installation import PLUGIN
from sglang_dspark.doctor.scheduling_files import look_at_calibration, look_at_table
from sglang_dspark.engine.identity import describe_server
from sglang_dspark.engine.modes import MODES, Compact, starting_mode
from sglang_dspark.seam import doctor as seam
from sglang_dspark.settings import Settings, SettingsError, load_settings


def probe(flags: Sequence[str]) -> Probed:
    """Everything that can be known of `sglang.launch_server FLAGS` without starting it."""
    mismatches = tuple(seam.mismatches())  # before plugins change what is looked at
    ran = seam.plugin_ran()
    reading = seam.read_command_line(flags)
    found: dict[str, Any] = dict.fromkeys(Probed.model_fields)
    found |= {
        "machine": _machine(),
        "mismatches": mismatches,
        "entry_points": seam.entry_points(PLUGIN),
        "plugin_ran": ran,
        "parse_error": reading.parse_error,
        "refused": reading.refused,
        "start_error": reading.start_error,
    }
    if reading.options is not None:
        accepted = not (reading.refused or reading.start_error)
        found |= _models(reading.options, accepted)
    return Probed(**found)


def _models(options: Any, accepted: bool) -> dict[str, Any]:
    """What the options name; what would be served only where they are accepted."""
    target, config = _target(options)
    draft = look_at_draft(options, config)
    found: dict[str, Any] = {
        "algorithm": seam.algorithm(options),
        "worker": seam.worker(options),
        "target": target,
        "draft": draft,
    }
    settings = _settings()
    named_table, named_calibration = seam.named_files(options)
    if draft.gamma and named_calibration:
        found["calibration"] = look_at_calibration(named_calibration, draft.gamma)
    if not accepted or config is None or draft.error or draft.folder is None:
        return found
    around = seam.surroundings(options)
    served = _served(around, draft.has_confidence, settings)
    server = _identity(around, config, Path(draft.folder), draft.gamma)
    found |= {"served": served, "server": asdict(server)}
    if served.schedules:
        found["table"] = look_at_table(server, named_table, settings)
    return found


def _target(options: Any) -> tuple[Target, seam.TargetConfig | None]:
    named = seam.target_path(options)
    folder = Path(named) if Path(named).is_dir() else None
    here = None if folder is None else str(folder)
    try:
        config = seam.target_config(options)
    except Exception as error:  # SGLang and transformers raise many kinds
        return Target(folder=here, named=named, error=str(error)), None
    facts = Target(
        folder=here,
        named=named,
        architecture=config.architecture,
        context_len=config.context_len,
        dtype=config.dtype,
        weight_bytes=weight_elements(folder) * config.itemsize if folder else 0,
        kv_bytes_per_token=config.kv_bytes_per_token,
    )
    return facts, config


def _served(around: seam.Surroundings, has_confidence: bool, settings: Settings) -> Served:
    mode, reason = starting_mode(
        os.environ,
        has_confidence=has_confidence,
        captures_graphs=around.captures_graphs,
        tables=settings.cost_table != "off",
    )
    possible = {name for name, kind in MODES.items() if has_confidence or not kind.schedules}
    possible -= {Compact.name} if around.captures_graphs else set()
    fields = asdict(around)
    fields.pop("tp")
    return Served(
        **fields,
        mode=mode,
        mode_reason=reason,
        modes=tuple(name for name in MODES if name in possible),
        # Another worker may know modes of its own.
        schedules=mode in MODES and MODES[mode].schedules,
    )


def _identity(
    around: seam.Surroundings, config: seam.TargetConfig, draft: Path, gamma: int
) -> Server:
    if around.device != "cpu":
        torch.set_num_threads(1)  # as SGLang does beside an accelerator
    elif activation.should_activate():
        threads.set_default_threads()
    return describe_server(
        device=around.device,
        dtype=config.dtype,
        target=Path(config.shape.path),
        draft=draft,
        gamma=gamma,
        tp=around.tp,
        engine=f"sglang {version('sglang')}",
        attention=around.attention,
    )


def _machine() -> Machine:
    accelerator = activation.has_accelerator()
    memory = psutil.virtual_memory()
    free, total = memory.available, memory.total
    if accelerator and torch.cuda.is_available():
        free, total = torch.cuda.mem_get_info()
    return Machine(
        accelerator=accelerator,
        intree_cpu=activation.has_intree_cpu_engine(),
        disabled=activation.is_disabled(),
        memory_total=total,
        memory_free=free,
        cores=len(os.sched_getaffinity(0)),
    )


def _settings() -> Settings:
    try:
        return load_settings()
    except SettingsError:  # told by a check of its own
        return Settings()


def main() -> None:
    out, *flags = sys.argv[1:]
    Path(out).write_text(probe(flags).model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
