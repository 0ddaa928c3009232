"""Facts of this machine: the light ones here, those that need SGLang in a process of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from sglang_dspark.doctor.facts import Case, Installation, Probed
from sglang_dspark.seam.version import TESTED_SGLANG
from sglang_dspark.settings import SettingsError, load_settings

PACKAGES = ("sglang-dspark", "sglang", "torch", "transformers")
PINNED = ("torch", "transformers")  # by SGLang
VARIABLES = re.compile(
    "SGLANG_.*|OMP_NUM_THREADS|CUDA_VISIBLE_DEVICES|HF_HOME|HF_HUB_OFFLINE|XDG_CACHE_HOME"
)
PROBE_SECONDS = 300  # loading SGLang takes 15 s, on a busy machine far longer


def gather(flags: Sequence[str]) -> Case:
    """All facts about `sglang.launch_server FLAGS` here."""
    installation = installed()
    if installation.versions["sglang"] is None:
        return Case(installation=installation, probed=None, probe_error="it is not installed")
    probed, error = _run_probe(flags)
    return Case(installation=installation, probed=probed, probe_error=error)


def installed() -> Installation:
    error, changed = _settings()
    return Installation(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        versions={name: _version(name) for name in PACKAGES},
        wanted=dict(_wanted()),
        tested_sglang=TESTED_SGLANG,
        environment={
            name: value for name, value in sorted(os.environ.items()) if VARIABLES.fullmatch(name)
        },
        settings_error=error,
        settings_changed=changed,
    )


def _run_probe(flags: Sequence[str]) -> tuple[Probed | None, str | None]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "probe.json"
        command = [sys.executable, "-m", "sglang_dspark.doctor.probe", str(out), *flags]
        # Nothing is downloaded by a command that only looks.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        try:
            done = subprocess.run(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no answer after {PROBE_SECONDS} s"
        if not out.is_file():
            lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
            return None, lines[-1] if lines else f"its process ended with status {done.returncode}"
        return Probed.model_validate_json(out.read_text(encoding="utf-8")), None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _wanted() -> Iterator[tuple[str, str]]:
    """Version ranges that the installed SGLang asks for."""
    try:
        lines = metadata.requires("sglang") or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            continue
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if requirement.name in PINNED and applies:
            yield requirement.name, str(requirement.specifier)


def _settings() -> tuple[str | None, dict[str, str]]:
    """(why the settings file is refused, what it changes)"""
    try:
        settings = load_settings()
    except SettingsError as error:
        return str(error), {}
    return None, dict(_changed(settings.model_dump(), type(settings)().model_dump()))


def _changed(
    found: Mapping[str, Any], default: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, str]]:
    for name, value in found.items():
        if isinstance(value, Mapping):
            yield from _changed(value, default[name], f"{prefix}{name}.")
        elif value != default[name]:
            yield prefix + name, str(value)
