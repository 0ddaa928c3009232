"""Starts that are refused: each option at the argument level, four through a real start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import NODEFAULT
from safetensors.torch import load_file, save_file
from sglang.srt.arg_groups.arg_utils import record_fields
from sglang.srt.server_args import ServerArgs

from sglang_dspark.profiling.server import Server, ServerError
from sglang_dspark.seam.arguments import draft_folder, unsupported
from tests.planted import Pair, make_random_pair
from tests.server.servers import START_TIMEOUT_S, STRICT, Pairs

# option in the text -> the argument that asks for it
REFUSED: dict[str, dict[str, Any]] = {
    "--tp-size": {"tp_size": 2},
    "--pp-size": {"pp_size": 2},
    "--dp-size": {"enable_dp_attention": True},
    "--disaggregation-mode": {"disaggregation_mode": "prefill"},
    "--enable-lora": {"enable_lora": True},
    "--lora-paths": {"lora_paths": ["a"]},
    "--enable-mixed-chunk": {"enable_mixed_chunk": True},
    "--enable-two-batch-overlap": {"enable_two_batch_overlap": True},
    "--enable-hierarchical-cache": {"enable_hierarchical_cache": True},
    "--enable-hisparse": {"enable_hisparse": True},
    "--enable-deterministic-inference": {"enable_deterministic_inference": True},
    "--enable-custom-logit-processor": {"enable_custom_logit_processor": True},
    "--enable-return-hidden-states": {"enable_return_hidden_states": True},
    "--speculative-use-block-verification": {"speculative_use_block_verification": True},
    "--speculative-draft-model-quantization": {"speculative_draft_model_quantization": "fp8"},
    "--speculative-dspark-sps-table-path": {"speculative_dspark_sps_table_path": "t.json"},
    "--speculative-dspark-confidence-sts-path": {"speculative_dspark_confidence_sts_path": "s"},
    "--quantization": {"quantization": "fp8"},
    "--speculative-adaptive": {"speculative_adaptive": True},
    "--speculative-num-steps 3": {"speculative_num_steps": 3},
    "--speculative-eagle-topk 4": {"speculative_eagle_topk": 4},
}


def options(**given: Any) -> Any:
    """A command line with its defaults, and what is given."""
    defaults = {
        field.name: field.default_factory() if field.default is NODEFAULT else field.default
        for field in record_fields(ServerArgs)
        if field.name != "model_path"
    } | {"model_path": "/target", "device": "cpu"}
    unknown = given.keys() - defaults.keys()
    assert not unknown, f"SGLang has no argument {unknown}"
    return SimpleNamespace(**(defaults | given))


def test_the_defaults_are_supported() -> None:
    assert unsupported(options(), {}) == []
    fine = options(
        speculative_num_steps=1,
        speculative_eagle_topk=1,
        page_size=16,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        chunked_prefill_size=64,
    )
    assert unsupported(fine, {"SGLANG_RAGGED_VERIFY_MODE": "static", "PATH": "/bin"}) == []


@pytest.mark.parametrize("option", REFUSED)
def test_each_unsupported_option_is_named(option: str) -> None:
    static = {"SGLANG_RAGGED_VERIFY_MODE": "static"}  # where scheduling flags have no effect
    reasons = unsupported(options(**REFUSED[option]), static)
    assert len(reasons) == 1 and option in reasons[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SGLANG_RAGGED_VERIFY_MODE", "sometimes"),
        ("SGLANG_SIMULATE_ACC_LEN", "4.7"),
        ("SGLANG_DSPARK_DEBUG_DUMP", "1"),
    ],
)
def test_variables_of_the_in_tree_worker_are_named(name: str, value: str) -> None:
    reasons = unsupported(options(), {name: value})
    assert len(reasons) == 1 and f"{name}={value}" in reasons[0]


def test_our_own_variables_are_not_refused() -> None:
    own = {"SGLANG_DSPARK_CONFIG": "/x.toml", "SGLANG_DSPARK_DISABLE": "0"}
    assert unsupported(options(), own) == []


def test_every_reason_is_given_at_once() -> None:
    both = options(enable_mixed_chunk=True, tp_size=2)
    assert len(unsupported(both, {"SGLANG_RAGGED_VERIFY_MODE": "sometimes"})) == 3


def test_a_draft_is_found_beside_the_target_or_asked_for(tmp_path: Path) -> None:
    alone = options(model_path=str(tmp_path), speculative_draft_model_path=None)
    with pytest.raises(ValueError, match="--speculative-draft-model-path"):
        draft_folder(alone)
    (tmp_path / "dspark").mkdir()
    (tmp_path / "dspark" / "config.json").write_text("{}")
    assert draft_folder(alone) == tmp_path / "dspark"
    named = options(model_path="/t", speculative_draft_model_path=str(tmp_path))
    assert draft_folder(named) == tmp_path


# ------------------------------------------------------------------------------------ a real start


def without_a_tensor(pair: Pair, folder: Path) -> Pair:
    tensors = load_file(pair.draft / "model.safetensors")
    del tensors["markov_head.markov_w2.weight"]
    broken = Pair(pair.target, folder / "draft")
    broken.draft.mkdir()
    (broken.draft / "config.json").write_text((pair.draft / "config.json").read_text())
    save_file(tensors, broken.draft / "model.safetensors", metadata={"format": "pt"})
    return broken


@pytest.fixture(scope="session")
def logs(pairs: Pairs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """What each refused start logged; they run side by side."""
    folder = tmp_path_factory.mktemp("refused")
    copy = pairs.get("copy")
    other = make_random_pair(folder / "other", gamma=7, max_positions=16384)
    starts = {
        "mixed chunk": (copy, ("--enable-mixed-chunk",)),
        "gamma": (copy, ("--speculative-dspark-block-size", "9")),
        "tensor": (without_a_tensor(copy, folder), ()),
        "other target": (Pair(copy.target, other.draft), ()),
    }
    running = {}
    for name, (pair, flags) in starts.items():
        command = ["--model-path", pair.target, "--speculative-algorithm", "DSPARK"]
        command += ["--speculative-draft-model-path", pair.draft, *flags]
        log = folder / f"{name}.log"
        running[name] = Server(command, log=log, environment=STRICT)
        running[name].launch()
    try:
        yield {name: log_of(server) for name, server in running.items()}
    finally:
        for server in running.values():
            server.stop()


def log_of(server: Server) -> str:
    with pytest.raises(ServerError, match="ended while starting"):
        server.wait(timeout_s=START_TIMEOUT_S)
    server.stop()
    return server.log.read_text(errors="replace")


@pytest.mark.server
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("mixed chunk", ["DSPARK cannot be served like this", "--enable-mixed-chunk"]),
        ("gamma", ["--speculative-dspark-block-size 9", "block_size 7"]),
        ("tensor", ["missing", "markov_head.markov_w2.weight"]),
        ("other target", ["belongs to another target", "--speculative-draft-model-path"]),
    ],
)
def test_a_real_start_is_refused_and_says_why(
    name: str, says: list[str], logs: Mapping[str, str]
) -> None:
    assert all(text in logs[name] for text in says), logs[name][-3000:]
    assert "fired up" not in logs[name]
