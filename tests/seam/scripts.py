"""Python that tests run in a process of its own: SGLang patches itself, for good."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# What every script starts with. `aside` makes our CPU platform stand aside, as on a machine with
# another backend.
PREAMBLE = """
import json, sys
def aside():
    import sglang_dspark.cpu.activation as activation
    activation.has_accelerator = lambda: True
def report(**facts):
    print("REPORT " + json.dumps(facts))
def patched():
    from sglang.srt.plugins.hook_registry import HookRegistry
    return sorted(HookRegistry._patched)
"""


def run_script(
    script: str, environment: Mapping[str, str] | None = None, arguments: tuple[str, ...] = ()
) -> dict[str, Any]:
    """What the script reported; its output is in the error of a failed one."""
    done = subprocess.run(
        [sys.executable, "-c", PREAMBLE + script, *arguments],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    reports = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert done.returncode == 0 and reports, done.stdout[-2000:] + done.stderr[-4000:]
    facts: dict[str, Any] = json.loads(reports[-1].removeprefix("REPORT "))
    return facts | {"stderr": done.stderr}
