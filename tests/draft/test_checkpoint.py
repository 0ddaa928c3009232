"""config.json -> DraftConfig: what is read, and one test for each refusal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sglang_dspark.draft.checkpoint import (
    CheckpointError,
    ConfidenceConfig,
    DraftConfig,
    parse_draft_config,
    read_draft_config,
    resolve_gamma,
)
from sglang_dspark.draft.target import TargetShape, check_against_target
from sglang_dspark.draft.tensors import find_weight_files, iter_expected_shapes

# DeepSpec's published draft for Qwen3-4B, as transformers 5 writes it.
QWEN3_4B: dict[str, Any] = {
    "architectures": ["Qwen3DSparkModel"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "block_size": 7,
    "confidence_head_with_markov": True,
    "dtype": "bfloat16",
    "enable_confidence_head": True,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2560,
    "intermediate_size": 9728,
    "layer_types": ["full_attention"] * 5,
    "markov_head_type": "vanilla",
    "markov_rank": 256,
    "mask_token_id": 151669,
    "max_position_embeddings": 40960,
    "max_window_layers": 36,
    "model_type": "qwen3",
    "num_anchors": 512,
    "num_attention_heads": 32,
    "num_hidden_layers": 5,
    "num_key_value_heads": 8,
    "num_target_layers": 36,
    "rms_norm_eps": 1e-06,
    "rope_parameters": {"rope_theta": 1000000, "rope_type": "default"},
    "sliding_window": None,
    "target_layer_ids": [1, 9, 17, 25, 33],
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
TARGET = TargetShape(
    "Qwen/Qwen3-4B", vocab_size=151936, hidden_size=2560, num_layers=36, context_len=40960
)
REMOVED = object()


def parse(**changes: Any) -> DraftConfig:
    raw = {key: value for key, value in {**QWEN3_4B, **changes}.items() if value is not REMOVED}
    return parse_draft_config(raw, Path("/draft"))


def refusal(**changes: Any) -> str:
    """The message, which always names the file."""
    with pytest.raises(CheckpointError) as caught:
        parse(**changes)
    assert "/draft/config.json" in str(caught.value)
    return str(caught.value)


def refusal_for(target: TargetShape, **changes: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        check_against_target(parse(**changes), target)
    message = str(caught.value)
    assert "/draft/config.json" in message
    assert "--speculative-draft-model-path" in message
    return message


# ----------------------------------------------------------------------------------------- accepted


def test_a_published_config_becomes_the_normal_form() -> None:
    config = parse()
    assert config == DraftConfig(
        path=Path("/draft"),
        family="deepspec",
        gamma=7,
        rows=7,
        anchor_first=True,
        mask_token_id=151669,
        capture_layer_ids=(1, 9, 17, 25, 33),
        markov_rank=256,
        markov_head_type="vanilla",
        confidence=ConfidenceConfig(with_markov=True, has_bias=True, pre_norm=False),
        num_layers=5,
        hidden_size=2560,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        intermediate_size=9728,
        rms_norm_eps=1e-6,
        attention_bias=False,
        rope_theta=1e6,
        rope_scaling=None,
        vocab_size=151936,
        max_position_embeddings=40960,
        num_target_layers=36,
    )
    check_against_target(config, TARGET)


def test_published_parameter_counts_follow_from_the_shapes() -> None:
    sizes = {"backbone": 0, "markov": 0, "confidence": 0}
    for name, shape in iter_expected_shapes(parse()):
        part = name.split("_head")[0] if "_head" in name else "backbone"
        count = 1
        for size in shape:
            count *= size
        sizes[part] += count
    assert round(sizes["backbone"] / 1e6, 1) == 537.4
    assert round(sizes["markov"] / 1e6, 1) == 77.8
    assert sizes["confidence"] == 2817


def test_rope_is_read_in_both_spellings() -> None:
    old = parse(rope_parameters=REMOVED, rope_theta=5e5, rope_scaling=None)
    assert (old.rope_theta, old.rope_scaling) == (5e5, None)
    yarn = {"factor": 4.0, "original_max_position_embeddings": 32768}
    new = parse(rope_parameters={"rope_theta": 1e6, "rope_type": "yarn", **yarn})
    old = parse(rope_parameters=REMOVED, rope_theta=1e6, rope_scaling={"type": "yarn", **yarn})
    assert new.rope_scaling == old.rope_scaling == {"rope_type": "yarn", **yarn}


def test_dspark_fields_may_lie_in_dspark_config() -> None:
    moved = ("enable_confidence_head", "confidence_head_with_markov", "markov_rank")
    nested = {key: QWEN3_4B[key] for key in moved}
    assert parse(dspark_config=nested, **dict.fromkeys(moved, REMOVED)) == parse()


def test_no_confidence_head_needs_no_confidence_flag() -> None:
    config = parse(enable_confidence_head=False, confidence_head_with_markov=REMOVED)
    assert config.confidence is None


def test_fields_that_do_not_matter_may_be_absent() -> None:
    gone = dict.fromkeys(("num_anchors", "layer_types", "attention_bias", "model_type"), REMOVED)
    assert parse(**gone) == parse()
    assert parse(num_target_layers=REMOVED).num_target_layers is None


def test_vocabularies_may_differ_by_padding() -> None:
    check_against_target(parse(vocab_size=151680), TARGET)
    check_against_target(parse(vocab_size=152064), TARGET)


# ---------------------------------------------------------------------------------------- families


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        (
            "speculators",
            {"speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"]},
        ),
        ("speculators", {"transformer_layer_config": {}, "architectures": ["DSparkDraftModel"]}),
        (
            "SpecForge",
            {"architectures": ["DSparkDraftModel"], "dflash_config": {"projector_type": "dspark"}},
        ),
        ("SpecForge", {"dflash_config": {"mask_token_id": 1}}),
        ("z-lab DFlash", {"architectures": ["DFlashDraftModel"], "dflash_config": {}}),
        ("Gemma4", {"architectures": ["Gemma4DSparkModel"], "model_type": "gemma4_text"}),
        ("DeepSeek-V4", {"architectures": ["DeepseekV4ForCausalLM"], "dspark_block_size": 5}),
    ],
)
def test_another_family_is_named_as_not_supported_yet(family: str, changes: dict[str, Any]) -> None:
    message = refusal(**changes)
    assert family in message
    assert "not supported yet" in message


def test_a_target_given_as_draft_is_named() -> None:
    message = refusal(architectures=["Qwen3ForCausalLM"])
    assert "not a DSpark draft" in message
    assert "Qwen3ForCausalLM" in message


def test_rank_zero_is_not_supported_yet() -> None:
    assert "not supported yet" in refusal(markov_rank=0)


def test_remote_code_is_not_executed(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit('executed')")
    raw = {**QWEN3_4B, "auto_map": {"AutoConfig": "evil.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    assert read_draft_config(tmp_path).gamma == 7


# ----------------------------------------------------------------------------------- single fields


@pytest.mark.parametrize(
    "field",
    [
        "block_size",
        "mask_token_id",
        "target_layer_ids",
        "enable_confidence_head",
        "confidence_head_with_markov",
        "markov_rank",
        "markov_head_type",
        "num_hidden_layers",
        "hidden_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "intermediate_size",
        "rms_norm_eps",
        "vocab_size",
        "max_position_embeddings",
    ],
)
@pytest.mark.parametrize("absent", [REMOVED, None])
def test_a_missing_field_is_named(field: str, absent: object) -> None:
    assert field in refusal(**{field: absent})


def test_all_missing_fields_are_named_together() -> None:
    message = refusal(block_size=REMOVED, head_dim=REMOVED)
    assert "block_size, head_dim" in message


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("block_size", 0, "at least 1"),
        ("block_size", "7", "integer"),
        ("block_size", True, "integer"),
        ("block_size", 7.5, "integer"),
        ("enable_confidence_head", "true", "true or false"),
        ("enable_confidence_head", 1, "true or false"),
        ("rms_norm_eps", 0, "positive"),
        ("rms_norm_eps", float("nan"), "positive"),
        ("markov_rank", -1, "at least 0"),
        ("markov_head_type", "lstm", "vanilla, gated, rnn"),
        ("mask_token_id", -1, "at least 0"),
        ("mask_token_id", 151936, "below vocab_size (151936)"),
        ("num_key_value_heads", 5, "multiple"),
        ("head_dim", 127, "even"),
        ("target_layer_ids", [], "non-empty"),
        ("target_layer_ids", 5, "list"),
        ("target_layer_ids", [1, 1], "strictly increasing"),
        ("target_layer_ids", [9, 1], "strictly increasing"),
        ("target_layer_ids", [-2, 1], "strictly increasing"),
        ("target_layer_ids", [1, 36], "below num_target_layers (36)"),
        ("rope_parameters", [1], "object"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(
    field: str, value: object, expected: str
) -> None:
    message = refusal(**{field: value})
    assert field in message
    assert expected in message


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hidden_act", "gelu"),
        ("sample_from_anchor", False),
        ("is_causal", True),
        ("use_gemma_norm", True),
        ("rope_is_neox_style", False),
        ("partial_rotary_factor", 0.25),
        ("final_logit_softcapping", 30.0),
        ("logits_mup_width_multiplier", 2.0),
        ("quantization_config", {"quant_method": "fp8"}),
        ("draft_vocab_size", 32000),
        ("layer_types", ["sliding_attention"] * 5),
    ],
)
def test_a_feature_that_would_change_the_maths_is_not_ignored(field: str, value: object) -> None:
    message = refusal(**{field: value})
    assert field in message
    assert "not supported yet" in message


def test_sliding_window_without_layer_types_is_refused() -> None:
    message = refusal(layer_types=REMOVED, use_sliding_window=True, sliding_window=2048)
    assert "sliding_window 2048" in message


@pytest.mark.parametrize(
    ("rope", "said"),
    [
        ({"rope_type": "default"}, "rope_theta is missing"),
        ({"rope_theta": 1e6, "rope_type": "proportional"}, "'proportional'"),
        ({"rope_theta": 1e6, "partial_rotary_factor": 0.25}, "partial_rotary_factor"),
    ],
)
def test_unusable_rope_is_named(rope: dict[str, Any], said: str) -> None:
    assert said in refusal(rope_parameters=rope)


def test_two_different_rope_thetas_are_refused() -> None:
    assert "[10000.0, 1000000.0]" in refusal(rope_theta=10000)


def test_contradiction_between_top_level_and_dspark_config_is_refused() -> None:
    message = refusal(dspark_config={"block_size": 5})
    assert "block_size is 7 at top level and 5 in dspark_config" in message


def test_missing_config_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        read_draft_config(tmp_path)


def test_a_hub_id_is_not_resolved_here() -> None:
    with pytest.raises(CheckpointError, match="expected a local directory"):
        read_draft_config("deepseek-ai/dspark_qwen3_4b_block7")


@pytest.mark.parametrize("text", ["{", "[]", '"x"'])
def test_unreadable_config_json_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json: (not readable|holds)"):
        read_draft_config(tmp_path)


# ------------------------------------------------------------------------------ against the target


def test_another_hidden_size_is_refused() -> None:
    message = refusal_for(replace(TARGET, hidden_size=4096))
    assert "hidden_size is 2560, the target's is 4096" in message


def test_another_number_of_target_layers_is_refused() -> None:
    message = refusal_for(replace(TARGET, num_layers=40))
    assert "num_target_layers is 36, the target has 40" in message


def test_another_vocabulary_is_refused() -> None:
    message = refusal_for(replace(TARGET, vocab_size=128256))
    assert "vocab_size is 151936" in message
    assert "128256" in message


def test_a_longer_context_than_the_draft_knows_is_refused_with_the_flag() -> None:
    message = refusal_for(replace(TARGET, context_len=65536))
    assert "max_position_embeddings is 40960" in message and "--context-length 40960" in message


@pytest.mark.parametrize("what", ["a mixture of experts (num_experts=8)", "a multimodal model (X)"])
def test_a_target_that_was_never_tried_is_refused(what: str) -> None:
    with pytest.raises(CheckpointError, match="dense text models only") as caught:
        check_against_target(parse(), replace(TARGET, unlike=(what,)))
    assert what in str(caught.value)


def test_mask_id_outside_the_embedding_of_the_target_is_refused() -> None:
    message = refusal_for(replace(TARGET, vocab_size=151669))
    assert "mask_token_id is 151669, outside the 151669 embedding rows" in message


def test_the_last_layer_cannot_be_captured() -> None:
    message = refusal_for(TARGET, target_layer_ids=[1, 9, 35])
    assert "target_layer_ids contains 35, expected 0 to 34" in message


def test_a_layer_beyond_the_target_cannot_be_captured() -> None:
    message = refusal_for(TARGET, target_layer_ids=[1, 40], num_target_layers=REMOVED)
    assert "contains 40" in message


def test_the_embedding_output_is_not_captured_yet() -> None:
    message = refusal_for(TARGET, target_layer_ids=[-1, 9])
    assert "contains -1" in message
    assert "not supported yet" in message


# ------------------------------------------------------------------------------------------- gamma


@pytest.mark.parametrize(
    ("block_size", "num_draft_tokens", "gamma"),
    [(None, None, 7), (None, 8, 7), (7, None, 7), (7, 8, 7), (3, None, 3), (3, 4, 3), (1, 2, 1)],
)
def test_gamma_is_the_flag_or_the_trained_block(
    block_size: int | None, num_draft_tokens: int | None, gamma: int
) -> None:
    assert (
        resolve_gamma(parse(), block_size_flag=block_size, num_draft_tokens_flag=num_draft_tokens)
        == gamma
    )


@pytest.mark.parametrize(
    ("block_size", "num_draft_tokens", "said"),
    [
        (8, None, "--speculative-dspark-block-size 8: the draft was trained with block_size 7"),
        (8, 9, "at most 7"),
        (0, None, "--speculative-dspark-block-size 0: expected 1 to 7"),
        (-1, None, "expected 1 to 7"),
        (5, 8, "--speculative-num-draft-tokens 8 contradicts --speculative-dspark-block-size 5"),
        (5, 5, "must be 6"),
        (None, 4, "--speculative-num-draft-tokens 4 contradicts the draft's block_size 7"),
        (None, 7, "must be 8"),
    ],
)
def test_contradicting_or_too_large_gamma_is_refused(
    block_size: int | None, num_draft_tokens: int | None, said: str
) -> None:
    with pytest.raises(CheckpointError) as caught:
        resolve_gamma(parse(), block_size_flag=block_size, num_draft_tokens_flag=num_draft_tokens)
    assert said in str(caught.value)


# ------------------------------------------------------------------------------------ weight files


def _touch(directory: Path, *names: str) -> None:
    for name in names:
        (directory / name).write_bytes(b"")


def _index(directory: Path, *shards: str) -> None:
    weight_map = {f"tensor.{i}": shard for i, shard in enumerate(shards)}
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_one_file_beside_training_state(tmp_path: Path) -> None:
    _touch(tmp_path, "model.safetensors", "training_state.rank0.pt", "train_config.py")
    assert find_weight_files(tmp_path) == [tmp_path / "model.safetensors"]


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    shards = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
    _touch(tmp_path, *shards)
    _index(tmp_path, *shards, shards[0])
    assert find_weight_files(tmp_path) == [tmp_path / shard for shard in shards]


@pytest.mark.parametrize("name", ["pytorch_model.bin", "draft.pt", "draft.pth"])
def test_pickles_are_refused(tmp_path: Path, name: str) -> None:
    _touch(tmp_path, name)
    with pytest.raises(CheckpointError, match=rf"pickled weights \({name}\)"):
        find_weight_files(tmp_path)


def test_no_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no weights"):
        find_weight_files(tmp_path)


def test_several_files_without_index_are_refused(tmp_path: Path) -> None:
    _touch(tmp_path, "a.safetensors", "b.safetensors")
    with pytest.raises(CheckpointError, match=r"a\.safetensors, b\.safetensors"):
        find_weight_files(tmp_path)


@pytest.mark.parametrize("shard", ["gone.safetensors", "../elsewhere.safetensors"])
def test_a_shard_that_is_not_there_is_named(tmp_path: Path, shard: str) -> None:
    draft = tmp_path / "draft"
    draft.mkdir()
    _touch(tmp_path, "elsewhere.safetensors")
    _touch(draft, "a.safetensors")
    _index(draft, "a.safetensors", shard)
    with pytest.raises(CheckpointError, match=r"not there: .*" + shard.split("/")[-1]):
        find_weight_files(draft)


def test_a_stale_file_beside_the_index_is_named(tmp_path: Path) -> None:
    _touch(tmp_path, "a.safetensors", "model.safetensors")
    _index(tmp_path, "a.safetensors")
    with pytest.raises(CheckpointError, match=r"does not name model\.safetensors"):
        find_weight_files(tmp_path)


def test_an_index_without_map_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(CheckpointError, match="weight_map"):
        find_weight_files(tmp_path)


def test_reading_a_config_needs_neither_torch_nor_sglang() -> None:
    code = (
        "import sys, sglang_dspark.draft.checkpoint\n"
        "bad = {'torch', 'sglang', 'transformers', 'safetensors'} & set(sys.modules)\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
