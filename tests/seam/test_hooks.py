"""Hooks: none without DSPARK, all of them with it, and one line where SGLang has changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sglang_dspark.seam.hooks import HOOKS, TRIGGER
from tests.seam.scripts import run_script

HERE = {hook.target for hook in HOOKS if hook.where in ("any", "http")}

ALONE = {"SGLANG_PLUGINS": "sglang_dspark"}  # SGLang's dependencies bring plugins of their own

NAMED = """
from sglang.srt.plugins import load_plugins
load_plugins()
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
for other in (None, "EAGLE", "NGRAM", "NONE"):
    SpeculativeAlgorithm.from_string(other)
before = patched()
ours = [m for m in sys.modules if m.startswith("sglang_dspark.")]

# Importers that hold a function by name before it is patched.
import sglang.srt.managers.scheduler
import pkgutil
from sglang_dspark.seam import hooks
wanted = [h for h in hooks.HOOKS if h.where in ("any", "http")]
originals = {h.target: pkgutil.resolve_name(h.target) for h in wanted}

algorithm = SpeculativeAlgorithm.from_string("dspark")
stale = []
for target, original in originals.items():
    if not callable(original) or "." not in target:
        continue
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang."):
            stale += [f"{name}.{k}" for k, v in list(vars(module).items()) if v is original]
wrapped = {t: pkgutil.resolve_name(t) is not original for t, original in originals.items()}
again = patched()
SpeculativeAlgorithm.from_string("DSPARK")
report(
    before=before, after=again, twice=patched() == again, ours=ours, stale=stale, wrapped=wrapped,
    worker=str(algorithm.create_worker(None)),
)
"""


@pytest.fixture(scope="module")
def facts() -> Mapping[str, Any]:
    return run_script(NAMED, ALONE)


def test_without_dspark_only_the_trigger_is_hooked(facts: Mapping[str, Any]) -> None:
    assert facts["before"] == [TRIGGER]
    # Neither the worker nor anything that it needs was imported.
    heavy = ("sglang_dspark.engine", "sglang_dspark.ops", "sglang_dspark.draft")
    assert not [name for name in facts["ours"] if name.startswith(heavy)]


def test_naming_dspark_applies_every_hook_once(facts: Mapping[str, Any]) -> None:
    assert set(facts["after"]) == {TRIGGER, *HERE}
    assert facts["twice"]
    assert all(facts["wrapped"].values()), facts["wrapped"]


def test_no_importer_keeps_an_unpatched_name(facts: Mapping[str, Any]) -> None:
    assert facts["stale"] == []


def test_dspark_is_served_by_our_worker(facts: Mapping[str, Any]) -> None:
    assert "sglang_dspark.engine.worker.DSparkWorker" in facts["worker"]


MISMATCHES = """
from dataclasses import replace
from sglang_dspark.seam import hooks, version
good = hooks.HOOKS
def outcome():
    try:
        hooks.install()
    except SystemExit as end:
        return str(end)
    return None
out = {}
hooks.HOOKS = (*good[:1], replace(good[1], parameters=("self",)), *good[2:])
out["signature"] = outcome()
hooks.HOOKS = (replace(good[0], target=good[0].target + "_gone"), *good[1:])
out["missing"] = outcome()
hooks.HOOKS = (replace(good[0], target="sglang.no_such_module.f"), *good[1:])
out["module"] = outcome()
hooks.HOOKS = good
version.TESTED_SGLANG = ("0.0.1",)
out["version"] = outcome()
version.TESTED_SGLANG = ("0.5.23",)
untouched = patched()

trigger = hooks.TRIGGER
hooks.TRIGGER = trigger + "_gone"
hooks.register_trigger()
out["trigger"] = None
sys.argv.append("DSPARK")
try:
    hooks.register_trigger()
except SystemExit as end:
    out["trigger"] = str(end)
hooks.HookRegistry._hooks.pop(hooks.TRIGGER)
hooks.TRIGGER = trigger

apply = hooks.HookRegistry.apply_hooks
hooks.HookRegistry.apply_hooks = classmethod(lambda cls: None)
out["not applied"] = outcome()
hooks.HookRegistry.apply_hooks = apply
out["good"] = outcome()
report(untouched=untouched, **{"out": out})
"""


@pytest.fixture(scope="module")
def mismatches() -> Mapping[str, Any]:
    return run_script(MISMATCHES, ALONE)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("signature", "create_worker takes ('self', 'server_args'), expected ('self',)"),
        ("missing", "SGLang has no sglang.srt.arg_groups.speculative_hook._handle_dspark_gone"),
        ("module", "SGLang has no sglang.no_such_module.f"),
        ("version", "pip install sglang==0.0.1"),
        ("trigger", f"SGLang has no {TRIGGER}_gone"),
        ("not applied", "was not applied"),
    ],
)
def test_a_mismatch_ends_the_process_with_one_line(
    what: str, says: str, mismatches: Mapping[str, Any]
) -> None:
    line = mismatches["out"][what]
    assert line is not None and line.startswith("sglang-dspark: ")
    assert says in line and "\n" not in line


def test_a_refused_sglang_is_left_as_it_was(mismatches: Mapping[str, Any]) -> None:
    assert mismatches["untouched"] == []
    assert mismatches["out"]["good"] is None  # once it is right, it goes on


def test_a_missing_trigger_is_one_warning_without_dspark(mismatches: Mapping[str, Any]) -> None:
    assert mismatches["stderr"].count("it stays out of the way") == 1
