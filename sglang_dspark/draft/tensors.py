"""What a draft directory must hold: its weight files, and the name and shape of every tensor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sglang_dspark.draft.checkpoint import DraftConfig
from sglang_dspark.draft.fields import CheckpointError, read_json_object


def find_weight_files(draft_dir: Path) -> list[Path]:
    """The safetensors files of a draft: one file, or the shards that the index names."""
    index = draft_dir / "model.safetensors.index.json"
    found = sorted(draft_dir.glob("*.safetensors"))
    if index.is_file():
        return _shards_of(index, found)
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(file.name for file in found)
        raise CheckpointError(
            f"{draft_dir}: several weight files ({names}) and no {index.name} that says which "
            "belong together; keep one, or add the index"
        )
    pickled = sorted(
        file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in draft_dir.glob(pattern)
    )
    if pickled:
        raise CheckpointError(
            f"{draft_dir}: holds pickled weights ({', '.join(pickled)}), which can run code when "
            "loaded; expected model.safetensors: convert them with safetensors.torch.save_file"
        )
    raise CheckpointError(f"{draft_dir}: no weights; expected model.safetensors")


def _shards_of(index: Path, found: list[Path]) -> list[Path]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index}: weight_map is {weight_map!r}, expected tensor -> file")
    names = sorted({str(name) for name in weight_map.values()})
    present = {file.name for file in found}
    # Only plain names of files beside the index: `present` holds nothing else.
    if missing := [name for name in names if name not in present]:
        raise CheckpointError(f"{index}: names files that are not there: {', '.join(missing)}")
    if extra := sorted(present - set(names)):
        raise CheckpointError(
            f"{index}: does not name {', '.join(extra)}, which lie beside it; remove the stale "
            "files or the stale index"
        )
    return [index.parent / name for name in names]


def iter_expected_shapes(config: DraftConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Canonical name and shape of every tensor that the draft must bring.

    `embed_tokens` and `lm_head` are not among them: the target's are used.
    """
    hidden, inner, rank = config.hidden_size, config.intermediate_size, config.markov_rank
    q_dim = config.num_heads * config.head_dim
    kv_dim = config.num_kv_heads * config.head_dim
    yield "fc.weight", (hidden, config.num_captured * hidden)
    yield "hidden_norm.weight", (hidden,)
    for i in range(config.num_layers):
        layer = f"layers.{i}."
        yield layer + "input_layernorm.weight", (hidden,)
        projections = {"q": (q_dim, hidden), "k": (kv_dim, hidden), "v": (kv_dim, hidden)}
        projections["o"] = (hidden, q_dim)
        for name, shape in projections.items():
            yield f"{layer}self_attn.{name}_proj.weight", shape
            if config.attention_bias:
                yield f"{layer}self_attn.{name}_proj.bias", shape[:1]
        yield layer + "self_attn.q_norm.weight", (config.head_dim,)
        yield layer + "self_attn.k_norm.weight", (config.head_dim,)
        yield layer + "post_attention_layernorm.weight", (hidden,)
        yield layer + "mlp.gate_proj.weight", (inner, hidden)
        yield layer + "mlp.up_proj.weight", (inner, hidden)
        yield layer + "mlp.down_proj.weight", (hidden, inner)
    yield "norm.weight", (hidden,)
    yield "markov_head.markov_w1.weight", (config.vocab_size, rank)
    yield "markov_head.markov_w2.weight", (config.vocab_size, rank)
    if config.markov_head_type == "gated":
        yield "markov_head.gate_proj.weight", (rank, hidden + rank)
        yield "markov_head.gate_proj.bias", (rank,)
    if config.markov_head_type == "rnn":
        yield "markov_head.joint_proj.weight", (3 * rank, 2 * rank + hidden)
        yield "markov_head.joint_proj.bias", (3 * rank,)
    if config.confidence is not None:
        columns = hidden + rank if config.confidence.with_markov else hidden
        yield "confidence_head.proj.weight", (1, columns)
        if config.confidence.has_bias:
            yield "confidence_head.proj.bias", (1,)
