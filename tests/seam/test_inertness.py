"""Installed but not asked for: stock SGLang, to the last argument (architecture, decision 3).

Another backend cannot be present here, so our platform is told that there is one.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.seam.hooks import TRIGGER
from tests.planted import make_random_pair
from tests.seam.scripts import run_script

START = """
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.platforms import current_platform
from sglang.srt.server_args import prepare_server_args
args = prepare_server_args(sys.argv[1:])
report(
    arguments={k: repr(v) for k, v in args.resolved_dict().items()},
    patched=patched(),
    platform=type(current_platform).__name__,
    ours=sorted(m for m in sys.modules if m.startswith("sglang_dspark")),
)
"""

IMPORTS = """
aside()
import sglang.srt.server_args
before = set(sys.modules)
from sglang_dspark.plugin import activate_platform, register
platform = activate_platform()
register()
report(platform=platform, new=sorted(set(sys.modules) - before), patched=patched())
"""


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """The same command line, resolved four ways."""
    target = make_random_pair(tmp_path_factory.mktemp("pair")).target
    return in_parallel(
        {
            "without us": (START, {"SGLANG_PLUGINS": ",".join(other_plugins()) or "none"}),
            "stands aside": ("aside()\n" + START, {}),
            "disabled": (START, {"SGLANG_DSPARK_DISABLE": "1"}),
            "imports": (IMPORTS, {}),
        },
        target,
    )


def other_plugins() -> list[str]:
    """SGLang's own dependencies bring some."""
    names = {entry.name for entry in entry_points(group="sglang.srt.plugins")}
    return sorted(names - {"sglang_dspark"})


def in_parallel(
    scripts: Mapping[str, tuple[str, Mapping[str, str]]], target: Path
) -> Mapping[str, Mapping[str, Any]]:
    command = ("--model-path", str(target), "--device", "cpu")
    command += ("--random-seed", "1", "--port", "31000")  # else drawn anew by each start
    with ThreadPoolExecutor(2) as pool:
        running = {
            name: pool.submit(run_script, script, environment, command)
            for name, (script, environment) in scripts.items()
        }
        return {name: future.result() for name, future in running.items()}


@pytest.mark.parametrize("how", ["stands aside", "disabled"])
def test_resolved_arguments_are_those_of_stock(
    how: str, starts: Mapping[str, Mapping[str, Any]]
) -> None:
    stock = starts["without us"]
    assert len(stock["arguments"]) > 300
    assert starts[how]["arguments"] == stock["arguments"]
    assert starts[how]["platform"] == stock["platform"]


def test_standing_aside_leaves_one_hook(starts: Mapping[str, Mapping[str, Any]]) -> None:
    others = starts["without us"]["patched"]
    assert TRIGGER not in others
    assert starts["stands aside"]["patched"] == sorted([*others, TRIGGER])


def test_disabled_means_nothing_at_all(starts: Mapping[str, Mapping[str, Any]]) -> None:
    assert starts["disabled"]["patched"] == starts["without us"]["patched"]
    # Only what reads the variable was imported.
    assert set(starts["disabled"]["ours"]) <= {
        "sglang_dspark",
        "sglang_dspark.plugin",
        "sglang_dspark.cpu",
        "sglang_dspark.cpu.activation",
    }


def test_register_imports_next_to_nothing(starts: Mapping[str, Mapping[str, Any]]) -> None:
    """Beyond what SGLang imports anyway to know its arguments: our seam, and the enum we hook."""
    facts = starts["imports"]
    assert facts["platform"] is None
    assert facts["patched"] == [TRIGGER]
    known = {
        "sglang.srt.speculative.spec_info",
        "sglang.srt.speculative.spec_registry",
        "sglang_dspark.seam",
        "sglang_dspark.seam.hooks",
        "sglang_dspark.seam.version",
    }
    assert set(facts["new"]) <= known | {"sglang_dspark.plugin"}
