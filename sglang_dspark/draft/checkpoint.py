"""A published draft directory -> one record, `DraftConfig`. Reads JSON only; never imports torch.

Whatever cannot be served is refused here with a `CheckpointError` that says what was given, what
was expected, and which file or option to change. Code named by a checkpoint is never run.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sglang_dspark.draft.fields import (
    DRAFT_PATH_FLAG,
    Fields,
    is_int,
    is_number,
    read_json_object,
)
from sglang_dspark.draft.fields import CheckpointError as CheckpointError

MarkovHeadType = Literal["vanilla", "gated", "rnn"]
MARKOV_HEAD_TYPES: tuple[MarkovHeadType, ...] = ("vanilla", "gated", "rnn")

# Embedding rows are rounded up for kernels (Qwen3 by 267, Inkling by 966). Counts further apart
# than this belong to two different vocabularies.

BLOCK_SIZE_FLAG = "--speculative-dspark-block-size"
NUM_DRAFT_TOKENS_FLAG = "--speculative-num-draft-tokens"


# ---------------------------------------------------------------------------------------- records


@dataclass(frozen=True, slots=True)
class ConfidenceConfig:
    with_markov: bool  # reads [h_k ; W1[x_{k-1}]] instead of h_k alone
    has_bias: bool
    pre_norm: bool  # h_k before the draft's final norm


@dataclass(frozen=True, slots=True)
class DraftConfig:
    """What a draft is, in one convention for every family (lower-case words as in `paper.md`)."""

    path: Path
    family: Literal["deepspec"]

    # The block: `rows` inputs [anchor, mask, ...] give `gamma` predictions.
    gamma: int  # trained block size
    rows: int
    anchor_first: bool  # row 0, the anchor, already predicts x_1
    mask_token_id: int
    capture_layer_ids: tuple[int, ...]  # 0-based: output of that layer; -1 the embedding's output

    # The heads.
    markov_rank: int
    markov_head_type: MarkovHeadType
    confidence: ConfidenceConfig | None

    # The backbone.
    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    attention_bias: bool
    rope_theta: float
    rope_scaling: Mapping[str, Any] | None  # None: plain RoPE; else with its `rope_type`
    vocab_size: int  # rows of embed_tokens, markov_w1 and markov_w2 in the file
    max_position_embeddings: int
    num_target_layers: int | None

    @property
    def num_captured(self) -> int:
        return len(self.capture_layer_ids)


# ------------------------------------------------------------------------------------- public calls


def read_draft_config(draft_dir: str | Path) -> DraftConfig:
    """Parse `draft_dir/config.json`. A hub id must already have been resolved to a directory."""
    path = Path(draft_dir)
    if not path.is_dir():
        raise CheckpointError(
            f"{DRAFT_PATH_FLAG} {draft_dir}: expected a local directory with config.json and "
            "*.safetensors; download the draft first and give its directory"
        )
    return parse_draft_config(read_json_object(path / "config.json"), path)


def parse_draft_config(raw: Mapping[str, Any], path: Path) -> DraftConfig:
    """`raw` is the content of `path/config.json`."""
    _require_deepspec_qwen3(raw, path)
    raw = _lift_dspark_config(raw, path)
    _require_plain_features(raw, path)
    fields = Fields(raw, path / "config.json")
    fields.require(*_REQUIRED)

    gamma = fields.integer("block_size", minimum=1)
    vocab_size = fields.integer("vocab_size", minimum=1)
    num_target_layers = (
        fields.integer("num_target_layers", minimum=1) if fields.has("num_target_layers") else None
    )
    rank = fields.integer("markov_rank", minimum=0)
    if rank == 0:
        raise CheckpointError(
            f"{fields.file}: markov_rank is 0, a draft without a Markov head (DeepSpec "
            f"'DFlash'); not supported yet, give a DSpark draft with {DRAFT_PATH_FLAG}"
        )
    rope_theta, rope_scaling = _read_rope(fields)
    config = DraftConfig(
        path=path,
        family="deepspec",
        gamma=gamma,
        rows=gamma,
        anchor_first=True,
        mask_token_id=fields.integer("mask_token_id", minimum=0),
        capture_layer_ids=_read_capture_ids(fields, num_target_layers),
        markov_rank=rank,
        markov_head_type=fields.choice("markov_head_type", MARKOV_HEAD_TYPES),
        confidence=_read_confidence(fields),
        num_layers=fields.integer("num_hidden_layers", minimum=1),
        hidden_size=fields.integer("hidden_size", minimum=1),
        num_heads=fields.integer("num_attention_heads", minimum=1),
        num_kv_heads=fields.integer("num_key_value_heads", minimum=1),
        head_dim=fields.integer("head_dim", minimum=2),
        intermediate_size=fields.integer("intermediate_size", minimum=1),
        rms_norm_eps=fields.positive("rms_norm_eps"),
        attention_bias=fields.boolean("attention_bias") if fields.has("attention_bias") else False,
        rope_theta=rope_theta,
        rope_scaling=rope_scaling,
        vocab_size=vocab_size,
        max_position_embeddings=fields.integer("max_position_embeddings", minimum=1),
        num_target_layers=num_target_layers,
    )
    if config.num_heads % config.num_kv_heads:
        raise fields.error(
            "num_attention_heads", f"a multiple of num_key_value_heads ({config.num_kv_heads})"
        )
    if config.head_dim % 2:
        raise fields.error("head_dim", "an even number (rotary embedding)")
    if config.mask_token_id >= vocab_size:
        raise fields.error("mask_token_id", f"an id below vocab_size ({vocab_size})")
    return config


def resolve_gamma(
    config: DraftConfig, *, block_size_flag: int | None, num_draft_tokens_flag: int | None
) -> int:
    """Drafts per block: the flag's, else the trained block. Never more than was trained."""
    gamma = config.gamma if block_size_flag is None else block_size_flag
    if gamma < 1:
        raise CheckpointError(
            f"{BLOCK_SIZE_FLAG} {gamma}: expected 1 to {config.gamma} drafts per block"
        )
    if gamma > config.gamma:
        raise CheckpointError(
            f"{BLOCK_SIZE_FLAG} {gamma}: the draft was trained with block_size {config.gamma} "
            f"({config.path / 'config.json'}); give at most {config.gamma}"
        )
    if num_draft_tokens_flag not in (None, gamma + 1):
        source = "the draft's block_size" if block_size_flag is None else BLOCK_SIZE_FLAG
        raise CheckpointError(
            f"{NUM_DRAFT_TOKENS_FLAG} {num_draft_tokens_flag} contradicts {source} {gamma}: the "
            f"anchor is verified too, so it must be {gamma + 1}; leave it out, and set "
            f"{BLOCK_SIZE_FLAG} to the number of drafts"
        )
    return gamma


# ------------------------------------------------------------------------------------ which family


def detect_family(raw: Mapping[str, Any]) -> str:
    """The convention a config.json follows; keyed on its layout, never on `markov_rank`."""
    architectures = raw.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    nested = raw.get("dflash_config")
    if "speculators_model_type" in raw or "transformer_layer_config" in raw:
        return "speculators"
    if any(key.startswith("dspark_") and key != "dspark_config" for key in raw):
        return "DeepSeek-V4 bundled (dspark_* keys in the target's config)"
    if isinstance(nested, Mapping):
        is_dspark = nested.get("projector_type") == "dspark" or bool(
            {"DSparkDraftModel", "Qwen3DSparkModel"} & set(names)
        )
        return "SpecForge (nested dflash_config)" if is_dspark else "z-lab DFlash"
    if "DFlashDraftModel" in names:
        return "z-lab DFlash"
    if "Gemma4DSparkModel" in names or str(raw.get("model_type", "")).startswith("gemma4"):
        return "DeepSpec Gemma4"
    if "Qwen3DSparkModel" in names and raw.get("model_type", "qwen3") == "qwen3":
        return "deepspec"
    return "unknown"


def _require_deepspec_qwen3(raw: Mapping[str, Any], path: Path) -> None:
    family = detect_family(raw)
    if family == "deepspec":
        return
    given = f"architectures {raw.get('architectures')}, model_type {raw.get('model_type')!r}"
    expected = (
        "expected DeepSpec's flat format, architectures ['Qwen3DSparkModel'], model_type 'qwen3'"
    )
    if family == "unknown":
        raise CheckpointError(
            f"{path / 'config.json'}: not a DSpark draft ({given}); {expected}; "
            f"check that {DRAFT_PATH_FLAG} names the draft and not the target"
        )
    raise CheckpointError(
        f"{path / 'config.json'}: a draft of the family {family} ({given}) is not supported yet; "
        f"{expected}; give such a draft with {DRAFT_PATH_FLAG}"
    )


def _lift_dspark_config(raw: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Some exports nest the DSpark fields in `dspark_config`; two different answers are refused."""
    nested = raw.get("dspark_config")
    if nested is None:
        return raw
    file = path / "config.json"
    if not isinstance(nested, Mapping):
        raise CheckpointError(f"{file}: dspark_config is {nested!r}, expected an object")
    for key, value in nested.items():
        if key in raw and raw[key] != value:
            raise CheckpointError(
                f"{file}: {key} is {raw[key]!r} at top level and {value!r} in dspark_config; "
                "keep one of them"
            )
    return {**raw, **nested}


# Features of other families or later formats; a draft that needs one must not load as if it did
# not. Each may be absent, null, or hold this value.
_ONLY_VALUE: dict[str, Any] = {
    "hidden_act": "silu",
    "sample_from_anchor": True,
    "is_causal": False,
    "use_gemma_norm": False,
    "rope_is_neox_style": True,
    "is_neox_style": True,
    "partial_rotary_factor": 1.0,
    "logits_mup_width_multiplier": 1.0,
    "final_logit_softcapping": None,
    "quantization_config": None,
    "quant_algo": None,
    "attention_value_scale": None,
    "attention_sink_bias": None,
}


def _require_plain_features(raw: Mapping[str, Any], path: Path) -> None:
    file = path / "config.json"
    for key, only in _ONLY_VALUE.items():
        value = raw.get(key)
        if value is not None and value != only:
            raise CheckpointError(
                f"{file}: {key} is {value!r}; not supported yet, expected {only!r} or no such field"
            )
    if raw.get("draft_vocab_size") not in (None, raw.get("vocab_size")):
        raise CheckpointError(
            f"{file}: draft_vocab_size is {raw['draft_vocab_size']!r}, vocab_size is "
            f"{raw.get('vocab_size')!r}; a reduced draft vocabulary is not supported yet"
        )
    layer_types = raw.get("layer_types")
    if isinstance(layer_types, list):
        windowed = any(kind != "full_attention" for kind in layer_types)
    else:
        windowed = bool(raw.get("use_sliding_window")) and raw.get("sliding_window") is not None
    if windowed:
        raise CheckpointError(
            f"{file}: layer_types {layer_types!r}, sliding_window {raw.get('sliding_window')!r}; "
            "sliding-window drafts are not supported yet, expected 'full_attention' in every layer"
        )


# ---------------------------------------------------------------------------------- single fields

_REQUIRED = (
    "block_size",
    "mask_token_id",
    "target_layer_ids",
    "enable_confidence_head",
    "markov_rank",
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "vocab_size",
    "max_position_embeddings",
)

_SUPPORTED_ROPE = ("default", "linear", "yarn", "llama3")


def _read_capture_ids(fields: Fields, num_target_layers: int | None) -> tuple[int, ...]:
    ids = fields.value("target_layer_ids")
    rule = "a non-empty, strictly increasing list of layer numbers (-1: the embedding's output)"
    if not isinstance(ids, list) or not ids or not all(is_int(i) and i >= -1 for i in ids):
        raise fields.error("target_layer_ids", rule)
    if any(later <= earlier for earlier, later in itertools.pairwise(ids)):
        raise fields.error("target_layer_ids", rule)
    if num_target_layers is not None and ids[-1] >= num_target_layers:
        raise fields.error("target_layer_ids", f"ids below num_target_layers ({num_target_layers})")
    return tuple(ids)


def _read_confidence(fields: Fields) -> ConfidenceConfig | None:
    if not fields.boolean("enable_confidence_head"):
        return None
    return ConfidenceConfig(
        with_markov=fields.boolean("confidence_head_with_markov"), has_bias=True, pre_norm=False
    )


def _read_rope(fields: Fields) -> tuple[float, Mapping[str, Any] | None]:
    """transformers 5 writes `rope_parameters`; older exports `rope_theta` and `rope_scaling`."""
    new, old = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    thetas = {
        float(source[key])
        for source, key in ((new, "rope_theta"), (fields.raw, "rope_theta"))
        if key in source and is_number(source[key])
    }
    if len(thetas) != 1 or min(thetas) <= 0:
        raise CheckpointError(
            f"{fields.file}: rope_theta is {sorted(thetas) or 'missing'}, expected one positive "
            "number, in rope_parameters or at top level"
        )
    scaling = {k: v for k, v in (new or old).items() if k not in ("rope_theta", "type")}
    kind = (new or old).get("rope_type", (new or old).get("type", "default"))
    if kind not in _SUPPORTED_ROPE:
        raise CheckpointError(
            f"{fields.file}: rope_type is {kind!r}, expected one of {', '.join(_SUPPORTED_ROPE)}"
        )
    if scaling.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(
            f"{fields.file}: partial_rotary_factor is {scaling['partial_rotary_factor']!r}; "
            "not supported yet, expected 1.0"
        )
    return thetas.pop(), None if kind == "default" else {**scaling, "rope_type": kind}
