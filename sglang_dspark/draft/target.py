"""Does this draft belong to that target? Everything that can be told from both configurations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sglang_dspark.draft.checkpoint import DRAFT_PATH_FLAG, CheckpointError, DraftConfig

MAX_VOCAB_PADDING = 1024


@dataclass(frozen=True, slots=True)
class TargetShape:
    """What of the target a draft must agree with."""

    path: str  # for messages only
    vocab_size: int  # embedding rows stored in the target's file, not rows a kernel adds
    hidden_size: int
    num_layers: int
    context_len: int  # positions that it is served with
    unlike: tuple[str, ...] = ()  # what sets it apart from a plain dense text model


def check_against_target(config: DraftConfig, target: TargetShape) -> None:
    """Refuse a target that drafts are not supported for, and a draft that is not for this target.

    Raises:
        CheckpointError: names the field, both values and what to change.
    """
    if target.unlike:
        raise CheckpointError(
            f"{target.path}: {', '.join(target.unlike)}: DSPARK serves plain dense text models "
            "only; serve this target without --speculative-algorithm DSPARK"
        )
    file = config.path / "config.json"
    fix = f"give the draft of this target with {DRAFT_PATH_FLAG} (target: {target.path})"
    if config.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{file}: hidden_size is {config.hidden_size}, the target's is {target.hidden_size}; "
            f"the draft shares the target's embedding and LM head; {fix}"
        )
    if config.num_target_layers not in (None, target.num_layers):
        raise CheckpointError(
            f"{file}: num_target_layers is {config.num_target_layers}, the target has "
            f"{target.num_layers} layers; {fix}"
        )
    if config.max_position_embeddings < target.context_len:
        raise CheckpointError(
            f"{file}: max_position_embeddings is {config.max_position_embeddings}, the target is "
            f"served with {target.context_len} positions; add "
            f"--context-length {config.max_position_embeddings}, or {fix}"
        )
    check_vocab_padding("vocab_size", config.vocab_size, target, file)
    if config.mask_token_id >= target.vocab_size:
        raise CheckpointError(
            f"{file}: mask_token_id is {config.mask_token_id}, outside the {target.vocab_size} "
            f"embedding rows of the target; {fix}"
        )
    for layer in config.capture_layer_ids:
        if layer == -1:
            raise CheckpointError(
                f"{file}: target_layer_ids contains -1 (the embedding's output); capturing it is "
                f"not supported yet; give a draft that reads layer outputs with {DRAFT_PATH_FLAG}"
            )
        if layer >= target.num_layers - 1:
            raise CheckpointError(
                f"{file}: target_layer_ids contains {layer}, expected 0 to "
                f"{target.num_layers - 2}: the target has {target.num_layers} layers and the last "
                f"one's output is not captured; {fix}"
            )


def check_vocab_padding(what: str, rows: int, target: TargetShape, file: Path) -> None:
    """Row counts may differ by padding: both files then hold the same tokens in the same order."""
    if abs(rows - target.vocab_size) >= MAX_VOCAB_PADDING or rows * 2 < target.vocab_size:
        raise CheckpointError(
            f"{file}: {what} is {rows}, the target's vocabulary has {target.vocab_size} rows; "
            f"only padding of fewer than {MAX_VOCAB_PADDING} rows may differ; give the draft of "
            f"this target with {DRAFT_PATH_FLAG} (target: {target.path})"
        )
