"""`sglang-dspark doctor`: every refusal and warning from made-up facts, then the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sglang_dspark.cli.doctor import doctor, server_flags
from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.core.cost_verdict import Server
from sglang_dspark.doctor import gather as gathering
from sglang_dspark.doctor.checkpoints import look_at_draft, weight_elements
from sglang_dspark.doctor.facts import (
    Calibration,
    Case,
    Draft,
    Facts,
    Installation,
    Machine,
    Probed,
    Served,
    Table,
    Target,
)
from sglang_dspark.doctor.finding import STATUS, Finding, verdict
from sglang_dspark.doctor.installation import ENTRY_POINTS
from sglang_dspark.doctor.judge import GROUPS, judge
from sglang_dspark.doctor.machine import OUR_PLATFORM
from sglang_dspark.doctor.scheduling_files import look_at_calibration, look_at_table
from sglang_dspark.doctor.server import OUR_WORKER
from sglang_dspark.draft.target import TargetShape
from sglang_dspark.draft.weights import load_draft_weights
from sglang_dspark.settings import Settings
from tests.core.made_up import PROVENANCE, SERVER, linear_table
from tests.planted import make_random_pair

GB = 10**9

INSTALLATION = Installation(
    python=(3, 11, 7),
    versions={
        "sglang-dspark": "0.1.0", "sglang": "0.5.23", "torch": "2.14.1", "transformers": "5.19.0",
    },
    wanted={"torch": "==2.14.1", "transformers": "==5.19.0"},
    tested_sglang=("0.5.23",),
    environment={},
    settings_error=None,
    settings_changed={},
)  # fmt: skip
MACHINE = Machine(
    accelerator=False,
    intree_cpu=False,
    disabled=False,
    memory_total=24 * GB,
    memory_free=20 * GB,
    cores=4,
)
TARGET = Target(
    folder="/models/target",
    named="/models/target",
    architecture="Qwen3ForCausalLM",
    context_len=8192,
    dtype="float32",
    weight_bytes=GB,
    kv_bytes_per_token=12_288,
)
DRAFT = Draft(
    folder="/models/draft",
    gamma=7,
    trained_gamma=7,
    markov="vanilla rank 64",
    has_confidence=True,
    context_len=8192,
    weight_bytes=GB // 10,
    kv_bytes_per_token=2048,
)
SERVED = Served(
    platform=OUR_PLATFORM,
    device="cpu",
    attention="dspark_cpu",
    captures_graphs=False,
    overlaps=True,
    max_running_requests=8,
    pool_tokens=8448,
    mode="compact",
    mode_reason="confidence head and cost table",
    modes=("static", "cap-accept", "compact"),
    schedules=True,
)
PROBED = Probed(
    machine=MACHINE,
    mismatches=(),
    entry_points=dict(ENTRY_POINTS),
    plugin_ran=True,
    algorithm="DSPARK",
    parse_error=None,
    refused=(),
    start_error=None,
    worker=OUR_WORKER,
    target=TARGET,
    draft=DRAFT,
    served=SERVED,
    table=Table(named=None),
    calibration=None,
    server={"device": "A CPU", "isa": "avx2", "cores": 4, "threads": 3},
)
CASE = Case(installation=INSTALLATION, probed=PROBED, probe_error=None)
IN_TREE = "sglang.srt.speculative.dspark_components.dspark_worker_v2.DSparkWorkerV2"


def but(case: Case, where: str, **changes: Any) -> Case:
    """The case with fields of one of its records changed; where: dotted, "" is the case."""

    def changed(record: Facts, path: list[str]) -> Facts:
        if not path:
            return record.model_copy(update=changes)
        inner = changed(getattr(record, path[0]), path[1:])
        return record.model_copy(update={path[0]: inner})

    found = changed(case, where.split(".") if where else [])
    assert isinstance(found, Case)
    return found


def told(case: Case) -> list[Finding]:
    """All that is not well."""
    return [finding for finding in judge(case) if finding.level != "ok"]


def test_a_sound_case_will_run_and_every_topic_is_told() -> None:
    findings = judge(CASE)
    assert told(CASE) == []
    assert verdict(findings) == "will-run" and STATUS[verdict(findings)] == 0
    topics = [topic for topics in GROUPS.values() for topic in topics]
    order = [finding.topic for finding in findings]
    assert set(topics) - set(order) == {"start"}  # there only when something is wrong
    assert order == sorted(order, key=topics.index)
    text = {finding.topic: finding.text for finding in findings}
    assert "sglang-dspark's" in text["worker"]
    assert "a small one is measured at start" in text["cost table"]
    assert "can be switched to static, cap-accept" in text["verify mode"]


# (record, changes, level, topic, part of the text or the advice)
UNSOUND: dict[str, tuple[str, dict[str, Any], str, str, str]] = {
    "python": ("installation", {"python": (3, 10, 1)}, "problem", "Python", "3.11 or newer"),
    "no torch": (
        "installation",
        {"versions": {**INSTALLATION.versions, "torch": None}},
        "problem", "packages", 'pip install "torch==2.14.1"',
    ),
    "other torch": (
        "installation",
        {"versions": {**INSTALLATION.versions, "torch": "2.13.0"}},
        "warning", "packages", "SGLang asks for ==2.14.1",
    ),
    "other sglang": (
        "installation",
        {"versions": {**INSTALLATION.versions, "sglang": "0.5.24"}},
        "problem", "packages", "pip install sglang==0.5.23",
    ),
    "not installed": (
        "probed",
        {"entry_points": dict.fromkeys(ENTRY_POINTS)},
        "warning", "plugin", "being on PYTHONPATH is not enough",
    ),
    "left out": (
        "installation",
        {"environment": {"SGLANG_PLUGINS": "other, more"}},
        "warning", "plugin", "add sglang_dspark to SGLANG_PLUGINS",
    ),
    "other platform": (
        "installation",
        {"environment": {"SGLANG_PLATFORM": "other"}},
        "warning", "plugin", "unset SGLANG_PLATFORM",
    ),
    "disabled": (
        "installation",
        {"environment": {"SGLANG_DSPARK_DISABLE": "1"}},
        "warning", "plugin", "switches this package off",
    ),
    "settings": (
        "installation",
        {"settings_error": "s.toml: no_draft.mode: wrong"},
        "problem", "settings", "correct the file",
    ),
    "seam": ("probed", {"mismatches": ("SGLang has no x.y",)}, "problem", "seam", "x.y"),
    "disabled without an accelerator": (
        "probed.machine", {"disabled": True}, "problem", "device", "unset SGLANG_DSPARK_DISABLE",
    ),
    "threads": (
        "probed",
        {"server": {"device": "A CPU", "isa": "avx2", "cores": 4, "threads": 4}},
        "warning", "processor", "set it to 3",
    ),
    "little memory": (
        "probed.machine", {"memory_free": 3 * GB}, "warning", "memory", "--max-total-tokens",
    ),
    "too little memory": (
        "probed.machine",
        {"memory_total": 3 * GB, "memory_free": 2 * GB},
        "problem", "memory", "serve a smaller pair",
    ),
    "unknown flag": (
        "probed",
        {"parse_error": "unrecognized arguments: --x", "target": None, "draft": None,
         "served": None, "worker": None, "algorithm": None},
        "problem", "SGLang flags", "unrecognized arguments: --x",
    ),
    "refused flag": (
        "probed",
        {"refused": ("--tp-size above 1 is not supported yet; leave it out",), "served": None},
        "problem", "SGLang flags", "--tp-size above 1",
    ),
    "refused variable": (
        "probed",
        {"refused": ("SGLANG_SIMULATE_ACC_LEN=3 steers another; unset it",), "served": None},
        "problem", "environment", "unset it",
    ),
    "another algorithm": (
        "probed", {"algorithm": "EAGLE"}, "problem", "SGLang flags", "does not use DSPARK",
    ),
    "whatever SGLang says": (
        "probed", {"start_error": "no such device", "served": None}, "problem", "start", "device",
    ),
    "in-tree worker": ("probed", {"worker": IN_TREE}, "warning", "worker", "SGLang's own"),
    "hook without effect": ("probed", {"plugin_ran": False}, "warning", "worker", "not the one"),
    "unknown worker": ("probed", {"worker": None}, "warning", "worker", "cannot be told"),
    "no target": (
        "probed.target", {"error": "no config.json\nmore"}, "problem", "target", "no config.json",
    ),
    "target not here": (
        "probed.target", {"folder": None}, "warning", "target", "weights were not looked at",
    ),
    "target without weights": (
        "probed.target", {"weight_bytes": 0}, "problem", "target", "no safetensors",
    ),
    "untested target": (
        "probed.target", {"architecture": "LlamaForCausalLM"}, "warning", "target", "Qwen3",
    ),
    "draft": (
        "probed.draft", {"error": "hidden_size is 1; give the right draft"},
        "problem", "draft", "give the right draft",
    ),
    "related draft": (
        "probed.draft", {"warning": "lowest cosine 0.9"}, "warning", "draft", "lowest cosine",
    ),
    "table off": (
        "probed", {"table": Table(named=None, switched_off=True)},
        "warning", "cost table", "cost_table = auto",
    ),
    "wrong table": (
        "probed", {"table": Table(named="t", error="t does not fit: device. Name another one")},
        "problem", "cost table", "Name another one",
    ),
    "doubtful table": (
        "probed",
        {"table": Table(named="t", name="t", verdict="warn", reasons=("cores: 2, not 4",))},
        "warning", "cost table", "cores: 2, not 4",
    ),
    "calibration": (
        "probed", {"calibration": Calibration(named="c", error="gamma 5")},
        "problem", "calibration", "--speculative-dspark-confidence-sts-path",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", UNSOUND)
def test_each_refusal_and_warning_comes_alone_and_says_what_to_do(name: str) -> None:
    where, changes, level, topic, says = UNSOUND[name]
    (finding,) = told(but(CASE, where, **changes))
    assert (finding.level, finding.topic) == (level, topic)
    assert says in f"{finding.text} {finding.advice}"
    expected = {"warning": 1, "problem": 3}[level]
    assert STATUS[verdict([finding])] == expected


def test_without_sglang_there_is_one_problem_about_the_start() -> None:
    case = Case(installation=INSTALLATION, probed=None, probe_error="No module named 'sglang'")
    (finding,) = told(case)
    assert finding.topic == "start" and "No module named" in finding.text


def test_nothing_is_said_twice() -> None:
    error = "hidden_size is 1, the target's is 2; give the draft of this target"
    case = but(but(CASE, "probed.draft", error=error), "probed", start_error=error, served=None)
    assert [finding.topic for finding in told(case)] == ["draft"]
    wrong = but(CASE, "installation", settings_error="s.toml: wrong")
    wrong = but(wrong, "probed", start_error="s.toml: wrong", served=None)
    assert [finding.topic for finding in told(wrong)] == ["settings"]


def test_what_is_right_is_described() -> None:
    def text(case: Case, topic: str) -> str:
        (found,) = [finding for finding in judge(case) if finding.topic == topic]
        assert found.level == "ok"
        return found.text

    static = but(
        CASE, "probed.served", mode="static", mode_reason="no head", modes=("static",),
        schedules=False,
    )  # fmt: skip
    static = but(static, "probed", table=None)
    assert "no other one" in text(static, "verify mode")
    assert "none is needed in verify mode static" in text(static, "cost table")
    found = but(CASE, "probed", table=Table(named=None, name="t.json", verdict="use"))
    assert text(found, "cost table") == "t.json, found on this machine, fits"
    assert "trained 7" in text(but(CASE, "probed.draft", gamma=3), "draft")
    assert "without confidence head" in text(
        but(CASE, "probed.draft", has_confidence=False), "draft"
    )
    named = but(CASE, "probed", calibration=Calibration(named="c.json", num_samples=9))
    assert "fitted on 9 blocks" in text(named, "calibration")
    changed = but(
        CASE, "installation", settings_changed={"no_draft.mode": "on"},
        environment={"SGLANG_DSPARK_CONFIG": "s.toml"},
    )  # fmt: skip
    assert text(changed, "settings") == "s.toml: no_draft.mode = on"
    assert "multiprocessors: 4" in text(but(CASE, "probed.served", device="cuda"), "processor")
    stock = but(CASE, "probed.served", platform="sglang.srt.platforms.cpu.CpuSRTPlatform")
    assert "SGLang's own CPU build" in text(stock, "device")


def test_the_settings_that_differ_from_the_default_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "s.toml"
    monkeypatch.setenv("SGLANG_DSPARK_CONFIG", str(file))
    file.write_text('cost_table = "off"\n[no_draft]\nperiod = 3\n')
    assert gathering.installed().settings_changed == {"no_draft.period": "3", "cost_table": "off"}
    file.write_text("colour = 1\n")
    assert "colour" in (gathering.installed().settings_error or "")


def test_this_installation_is_read() -> None:
    found = gathering.installed()
    assert found.versions["sglang"] in found.tested_sglang
    assert found.wanted.keys() == {"torch", "transformers"}


# ------------------------------------------------------------------------- files, without a server


def options(draft: Path, **changes: Any) -> Any:
    """The few fields of SGLang's options that name a draft."""
    fields = {
        "speculative_draft_model_path": str(draft),
        "speculative_dspark_block_size": None,
        "speculative_num_draft_tokens": None,
    }
    return SimpleNamespace(**(fields | changes))


def target_config(folder: Path) -> Any:
    raw = json.loads((folder / "config.json").read_text())
    shape = TargetShape(
        str(folder),
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        num_layers=raw["num_hidden_layers"],
        context_len=raw["max_position_embeddings"],
    )
    return SimpleNamespace(shape=shape, itemsize=4)


def test_a_draft_is_looked_at_as_a_server_would(tmp_path: Path) -> None:
    pair = make_random_pair(tmp_path)
    target = target_config(pair.target)
    found = look_at_draft(options(pair.draft), target)
    assert (found.error, found.gamma, found.has_confidence) == (None, 5, True)
    assert found.weight_bytes == 4 * weight_elements(pair.draft) > 0
    assert look_at_draft(options(pair.draft, speculative_dspark_block_size=3), target).gamma == 3
    more = look_at_draft(options(pair.draft, speculative_dspark_block_size=9), target)
    assert "give at most 5" in (more.error or "")
    absent = look_at_draft(options(tmp_path / "no" / "such" / "folder"), target)
    assert absent.folder is None and absent.error


@pytest.mark.parametrize("what", ["config", "missing", "shape", "context", "truncated"])
def test_a_broken_draft_is_refused_in_the_words_of_the_loader(what: str, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    from sglang_dspark.draft.checkpoint import read_draft_config
    from sglang_dspark.draft.target import check_against_target

    pair = make_random_pair(tmp_path)
    target, weights = target_config(pair.target), pair.draft / "model.safetensors"
    tensors = load_file(weights)
    if what == "config":
        raw = json.loads((pair.draft / "config.json").read_text())
        (pair.draft / "config.json").write_text(json.dumps(raw | {"hidden_size": 32}))
    elif what == "missing":
        save_file({k: v for k, v in tensors.items() if "markov_w1" not in k}, weights)
    elif what == "shape":
        save_file(tensors | {"fc.weight": torch.zeros(2, 2)}, weights)
    elif what == "context":
        raw = json.loads((pair.draft / "config.json").read_text())
        (pair.draft / "config.json").write_text(json.dumps(raw | {"max_position_embeddings": 64}))
    else:
        weights.write_bytes(weights.read_bytes()[:100])
    found = look_at_draft(options(pair.draft), target)
    with pytest.raises(ValueError) as refused:
        config = read_draft_config(pair.draft)
        check_against_target(config, target.shape)
        load_draft_weights(config, target.shape, dtype=torch.float32)
    assert found.error == str(refused.value)


def test_the_table_is_the_one_that_a_server_would_find(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sglang_dspark.core.table_folders._PACKAGE", tmp_path / "package")
    nothing = look_at_table(SERVER, None, Settings())
    assert (nothing.name, nothing.error) == (None, None)
    folder = tmp_path / "sglang-dspark" / "cost_tables"
    folder.mkdir(parents=True)
    (folder / "mine.json").write_text(dump_table(linear_table()))
    assert look_at_table(SERVER, None, Settings()).name == "mine.json"
    other = Server(**{n: getattr(PROVENANCE, n) for n in Server.__dataclass_fields__} | {"tp": 2})
    assert look_at_table(other, None, Settings()).name is None
    named = look_at_table(other, str(folder / "mine.json"), Settings())
    assert named.error is not None and "tp" in named.error
    assert look_at_table(SERVER, None, Settings(cost_table="off")).switched_off
    assert look_at_table(SERVER, None, Settings(cost_table="measure")).name is None


def test_a_calibration_is_read_for_the_gamma_that_is_served(tmp_path: Path) -> None:
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"temperatures": [1.1] * 5, "num_samples": 20}))
    assert look_at_calibration(str(file), 5).num_samples == 20
    assert "fitted for gamma 5" in (look_at_calibration(str(file), 7).error or "")


# ------------------------------------------------------------------------------------- the command

APP = typer.Typer()
APP.command(context_settings={"allow_extra_args": True})(doctor)


def no_options() -> dict[str, Path | None]:
    return dict.fromkeys(("--target", "--draft", "--table", "--calibration"))


def test_flags_of_the_server_in_question(tmp_path: Path) -> None:
    bundled = server_flags(no_options(), ["--tp-size", "2"])
    assert bundled[:4:2] == ["--model-path", "--speculative-draft-model-path"]
    assert bundled[-4:] == ["--speculative-algorithm", "DSPARK", "--tp-size", "2"]
    own = server_flags(no_options() | {"--target": tmp_path}, [])
    assert own == ["--model-path", str(tmp_path), "--speculative-algorithm", "DSPARK"]
    whole = ["--model-path=x", "--speculative-algorithm", "DSPARK"]
    assert server_flags(no_options(), whole) == whole  # a command line as somebody has it


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--target", "/no/such"], "no such file or folder"),
        (["--draft", "."], "give --target too"),
        (["--target", ".", "--", "--model-path", "x"], "name the same thing"),
        (["--table", ".", "--", "--speculative-dspark-sps-table-path=x"], "name the same thing"),
        (["--tabel", "x"], "No such option"),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(APP, arguments)
    assert result.exit_code == 2
    assert says in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("changes", "status", "says"),
    [
        ({}, 0, "Will run: DSPARK by sglang-dspark's worker on cpu, gamma 7, verify mode compact."),
        ({"worker": IN_TREE}, 1, "SGLang's own worker"),
        ({"mismatches": ("a", "b")}, 3, "Will be refused: 2 problems above."),
    ],
)
def test_the_exit_status_is_the_verdict(
    changes: dict[str, Any], status: int, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gathering, "gather", lambda flags: but(CASE, "probed", **changes))
    monkeypatch.setenv("COLUMNS", "100")
    result = CliRunner().invoke(APP, [])
    assert result.exit_code == status
    assert says in " ".join(result.stdout.split())
    record = json.loads(CliRunner().invoke(APP, ["--json"]).stdout)
    assert record["status"] == status
    assert len(record["findings"]) == len(judge(but(CASE, "probed", **changes)))


def test_a_process_that_cannot_load_sglang_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    case = gathering.gather([])
    assert case.probed is None and "status 1" in (case.probe_error or "")


COMMAND = (
    "import typer; from sglang_dspark.cli.doctor import doctor; app = typer.Typer(); "
    "app.command(context_settings={'allow_extra_args': True})(doctor); app()"
)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    # As a user's terminal is: what other tests set must not steer the server in question.
    mine = {n: v for n, v in os.environ.items() if not n.startswith(("SGLANG_", "OMP_"))}
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        env={**mine, "COLUMNS": "100", **environment},
        capture_output=True,
        text=True,
        timeout=400,
    )


@pytest.mark.timeout(420)
def test_the_bundled_pair_will_run_with_our_worker(tmp_path: Path) -> None:
    done = run("--json", XDG_CACHE_HOME=str(tmp_path))
    record = json.loads(done.stdout)
    problems = [f for f in record["findings"] if f["level"] == "problem"]
    assert problems == [] and done.returncode in (0, 1), done.stderr
    assert record["worker"] == OUR_WORKER
    (plugin,) = [f for f in record["findings"] if f["topic"] == "plugin"]
    assert plugin["level"] == "ok"
    assert record["served"]["modes"][:2] == ["static", "cap-accept"]
    assert record["server"]["gamma"] == 7 and record["server"]["dtype"] == "float32"
    assert "Will run" in done.stderr and "sglang-dspark's worker" in done.stderr


@pytest.mark.timeout(420)
def test_a_wrong_flag_a_wrong_variable_and_a_broken_draft_are_all_told_at_once(
    tmp_path: Path,
) -> None:
    pair = make_random_pair(tmp_path)
    (pair.draft / "model.safetensors").unlink()
    paths = ("--target", str(pair.target), "--draft", str(pair.draft))
    done = run(*paths, "--", "--tp-size", "2", SGLANG_DSPARK_TRACE="1")
    assert done.returncode == 3, done.stderr
    shown = " ".join(done.stdout.split())
    assert "--tp-size above 1 is not supported yet" in shown
    assert "SGLANG_DSPARK_TRACE=1 steers SGLang's in-tree worker" in shown
    assert "no weights" in shown
    assert "Will be refused: 3 problems above." in shown
