"""Strict loading: what comes out, and one test for each fault of a file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from sglang_dspark.draft.checkpoint import (
    CheckpointError,
    DraftConfig,
    read_draft_config,
)
from sglang_dspark.draft.tensors import iter_expected_shapes
from sglang_dspark.draft.weights import canonical_name, check_same_target, load_draft_weights
from tests.draft.conftest import tiny_target
from tests.planted import HIDDEN, Pair, _draft_shapes

MakePair = Callable[..., Pair]


@pytest.fixture
def draft(random_pair: MakePair, tmp_path: Path) -> Path:
    """A copy of a good draft, to be spoiled."""
    shutil.copytree(random_pair().draft, tmp_path / "draft")
    return tmp_path / "draft"


def change(draft: Path, *, drop: Sequence[str] = (), put: dict[str, Tensor] | None = None) -> None:
    tensors = {**stored_tensors(draft), **(put or {})}
    save_file({k: v for k, v in tensors.items() if k not in drop}, draft / "model.safetensors")


def stored_tensors(draft: Path) -> dict[str, Tensor]:
    """Copies, for the file may be overwritten."""
    return {k: v.clone() for k, v in load_file(draft / "model.safetensors").items()}


def change_config(draft: Path, **changes: object) -> None:
    raw = json.loads((draft / "config.json").read_text())
    (draft / "config.json").write_text(json.dumps({**raw, **changes}))


def load(draft: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return load_draft_weights(read_draft_config(draft), tiny_target(), dtype=dtype)


def refusal(draft: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load(draft)
    assert str(draft) in str(caught.value)
    return str(caught.value)


# ----------------------------------------------------------------------------------------- accepted


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_type": "gated"},
        {"head_type": "rnn"},
        {"attention_bias": True},
        {"confidence": False},
        {"confidence_with_markov": False},
        {"num_draft_layers": 1, "target_layer_ids": (0,), "markov_rank": 8},
    ],
)
def test_every_variant_loads_whole(random_pair: MakePair, options: dict[str, object]) -> None:
    draft = random_pair(**options).draft
    config = read_draft_config(draft)
    shapes = _draft_shapes(json.loads((draft / "config.json").read_text()))
    assert dict(iter_expected_shapes(config)) == shapes
    stored, loaded = load_file(draft / "model.safetensors"), load(draft)
    assert (
        loaded.keys() == shapes.keys() == stored.keys() - {"embed_tokens.weight", "lm_head.weight"}
    )
    for name, tensor in loaded.items():
        assert torch.equal(tensor, stored[name]), name


@pytest.mark.parametrize(
    ("stored", "canonical"),
    [
        ("fc.weight", "fc.weight"),
        ("model.fc.weight", "fc.weight"),
        ("_orig_mod.fc.weight", "fc.weight"),
        ("_orig_mod.model.norm.weight", "norm.weight"),
        ("model._orig_mod.layers.0.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("layers.0._orig_mod.mlp.up_proj.weight", "layers.0.mlp.up_proj.weight"),
        ("models.fc.weight", "models.fc.weight"),
    ],
)
def test_canonical_names(stored: str, canonical: str) -> None:
    assert canonical_name(stored) == canonical


@pytest.mark.parametrize("prefix", ["model.", "_orig_mod."])
def test_prefixed_names_load_as_plain_ones(draft: Path, prefix: str) -> None:
    plain = {name: tensor.clone() for name, tensor in load(draft).items()}

    stored = stored_tensors(draft)
    save_file({prefix + k: v for k, v in stored.items()}, draft / "model.safetensors")
    for name, tensor in load(draft).items():
        assert torch.equal(tensor, plain[name]), name


def test_shards_load_as_one_file(draft: Path) -> None:
    tensors = stored_tensors(draft)
    (draft / "model.safetensors").unlink()
    names = sorted(tensors)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: tensors[name] for name in part}, draft / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (draft / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    for name, tensor in load(draft).items():
        assert torch.equal(tensor, tensors[name]), name


def test_copies_of_the_target_may_be_absent(draft: Path) -> None:
    change(draft, drop=["embed_tokens.weight", "lm_head.weight"])
    assert "embed_tokens.weight" not in load(draft)


def test_dtype_is_the_requested_one_but_confidence_stays_fp32(draft: Path) -> None:
    weights = load(draft, dtype=torch.bfloat16)
    for name, tensor in weights.items():
        wanted = torch.float32 if name.startswith("confidence_head.") else torch.bfloat16
        assert tensor.dtype == wanted, name


# ------------------------------------------------------------------------------ padded vocabularies


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(300, 320), (320, 300), (300, 300)])
def test_markov_rows_follow_the_target(
    random_pair: MakePair, target_rows: int, draft_rows: int
) -> None:
    draft = random_pair(vocab_size=target_rows, draft_vocab_size=draft_rows).draft
    stored = load_file(draft / "model.safetensors")
    weights = load_draft_weights(
        read_draft_config(draft), tiny_target(vocab_size=target_rows), dtype=torch.float32
    )
    common = min(target_rows, draft_rows)
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        assert weights[name].shape[0] == target_rows
        assert torch.equal(weights[name][:common], stored[name][:common])
        assert not weights[name][common:].any()


def test_copy_of_the_embedding_may_be_padded_otherwise(draft: Path) -> None:
    change(draft, put={"embed_tokens.weight": torch.zeros(310, HIDDEN)})
    load(draft)


def test_copy_of_the_embedding_of_another_width_is_refused(draft: Path) -> None:
    change(draft, put={"embed_tokens.weight": torch.zeros(320, 32)})
    assert "wrong shape: embed_tokens.weight is [320, 32]" in refusal(draft)


def test_copy_of_the_head_of_another_vocabulary_is_refused(draft: Path) -> None:
    change(draft, put={"lm_head.weight": torch.zeros(32000, HIDDEN)})
    assert "the row count of lm_head.weight is 32000" in refusal(draft)


# ------------------------------------------------------------------------------------------- faults


def test_a_missing_tensor_is_named(draft: Path) -> None:
    change(draft, drop=["layers.1.self_attn.k_norm.weight"])
    assert "missing: layers.1.self_attn.k_norm.weight [32]" in refusal(draft)


@pytest.mark.parametrize(
    "name", ["markov_head.markov_w2.weight", "confidence_head.proj.bias", "fc.weight"]
)
def test_a_missing_head_is_never_skipped(draft: Path, name: str) -> None:
    change(draft, drop=[name])
    assert f"missing: {name}" in refusal(draft)


def test_a_left_over_tensor_is_named_as_stored(draft: Path) -> None:
    change(draft, put={"model.layers.2.mlp.up_proj.weight": torch.zeros(2, 3)})
    assert "left over: model.layers.2.mlp.up_proj.weight [2, 3]" in refusal(draft)


def test_a_head_that_the_config_does_not_mention_is_left_over(draft: Path) -> None:
    change_config(draft, enable_confidence_head=False)
    assert "left over: confidence_head.proj.weight" in refusal(draft)


def test_a_wrong_shape_is_named_with_the_right_one(draft: Path) -> None:
    change(draft, put={"fc.weight": torch.zeros(64, 128)})
    assert "wrong shape: fc.weight is [64, 128], expected [64, 192]" in refusal(draft)


def test_confidence_columns_must_agree_with_the_flag(draft: Path) -> None:
    change_config(draft, confidence_head_with_markov=False)
    expected = "wrong shape: confidence_head.proj.weight is [1, 80], expected [1, 64]"
    assert expected in refusal(draft)


def test_quantised_weights_are_refused(draft: Path) -> None:
    change(draft, put={"fc.weight": torch.zeros(64, 192, dtype=torch.int8)})
    assert "wrong type: fc.weight is I8" in refusal(draft)


def test_two_names_for_one_tensor_are_refused(draft: Path) -> None:
    change(draft, put={"model.norm.weight": torch.ones(HIDDEN)})
    message = refusal(draft)
    assert "twice: norm.weight" in message
    assert "model.norm.weight" in message


def test_all_faults_are_in_one_message(draft: Path) -> None:
    bad = {"extra": torch.zeros(1), "hidden_norm.weight": torch.zeros(3)}
    change(draft, drop=["norm.weight"], put=bad)
    message = refusal(draft)
    assert "missing: norm.weight" in message
    assert "left over: extra" in message
    assert "wrong shape: hidden_norm.weight" in message


def test_a_damaged_file_is_named(draft: Path) -> None:
    file = draft / "model.safetensors"
    file.write_bytes(file.read_bytes()[:5000])
    assert "model.safetensors: not a readable safetensors file" in refusal(draft)


# ------------------------------------------------------------------------------------- same target


def target_embedding(pair: Pair) -> Tensor:
    return load_file(pair.target / "model.safetensors")["model.embed_tokens.weight"]


def config_of(pair: Pair) -> DraftConfig:
    return read_draft_config(pair.draft)


def test_the_right_target_passes_in_any_precision(random_pair: MakePair) -> None:
    pair = random_pair()
    assert check_same_target(config_of(pair), target_embedding(pair)) is None
    assert check_same_target(config_of(pair), target_embedding(pair).bfloat16()) is None


def test_rows_added_by_a_kernel_do_not_matter(random_pair: MakePair) -> None:
    pair = random_pair(vocab_size=300)
    padded = torch.cat([target_embedding(pair), torch.zeros(20, HIDDEN)])
    assert check_same_target(config_of(pair), padded) is None


def test_a_fine_tuned_target_is_warned_about(random_pair: MakePair) -> None:
    pair = random_pair()
    embedding = target_embedding(pair)
    tuned = embedding + 0.1 * embedding.std() * torch.randn_like(embedding)
    warning = check_same_target(config_of(pair), tuned)
    assert warning is not None
    assert "lower accept length" in warning


def test_the_draft_of_another_target_is_refused(random_pair: MakePair) -> None:
    pair, other = random_pair(), random_pair(seed=1)
    with pytest.raises(CheckpointError, match="belongs to another target"):
        check_same_target(config_of(pair), target_embedding(other))


def test_a_draft_without_a_copy_cannot_be_compared(draft: Path) -> None:
    change(draft, drop=["embed_tokens.weight"])
    assert check_same_target(read_draft_config(draft), torch.zeros(320, HIDDEN)) is None
