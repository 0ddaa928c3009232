"""The draft as a server would load it, without loading it; how large checkpoints are."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sglang_dspark.doctor.facts import Draft
from sglang_dspark.draft.checkpoint import DraftConfig, read_draft_config, resolve_gamma
from sglang_dspark.draft.target import TargetShape, check_against_target
from sglang_dspark.draft.weights import check_same_target, load_draft_weights
from sglang_dspark.seam import doctor as seam

EMBEDDING = "model.embed_tokens.weight"


def look_at_draft(options: Any, target: seam.TargetConfig | None) -> Draft:
    """The first thing that a server would refuse, or what the draft is."""
    try:
        folder = seam.named_draft(options)
    except Exception as error:  # the hub's client raises many kinds
        return Draft(folder=None, error=str(error))
    try:
        config = read_draft_config(folder)
        gamma = resolve_gamma(config, **seam.draft_flags(options))
        known = Draft(
            folder=str(folder),
            gamma=gamma,
            trained_gamma=config.gamma,
            markov=f"{config.markov_head_type} rank {config.markov_rank}",
            has_confidence=config.confidence is not None,
            context_len=config.max_position_embeddings,
        )
    except (ValueError, OSError) as error:
        return Draft(folder=str(folder), error=str(error))
    if target is None:
        return known
    try:
        warning = check_draft(config, target.shape)
    except ValueError as error:
        return known.model_copy(update={"error": str(error)})
    row = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    sizes = {
        "weight_bytes": weight_elements(folder) * target.itemsize,
        "kv_bytes_per_token": row * target.itemsize,
    }
    return known.model_copy(update={"warning": warning, **sizes})


def check_draft(config: DraftConfig, target: TargetShape) -> str | None:
    """What a server checks when it loads the draft; returns its warning.

    Names, shapes and types of all tensors come from the files' headers: nothing is copied to the
    meta device.

    Raises:
        CheckpointError: as the server.
    """
    check_against_target(config, target)
    load_draft_weights(config, target, dtype=torch.float32, device="meta")
    embedding = _embedding(Path(target.path))
    return None if embedding is None else check_same_target(config, embedding)


def weight_elements(folder: Path) -> int:
    """Numbers in all safetensors files of a folder, from their headers; 0 for unreadable ones."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as weights:
                header = json.loads(weights.read(int.from_bytes(weights.read(8), "little")))
        except (OSError, ValueError, MemoryError, OverflowError):
            continue
        total += sum(prod(t["shape"]) for name, t in header.items() if name != "__metadata__")
    return total


def _embedding(folder: Path) -> torch.Tensor | None:
    """[vocabulary, H] a memory-mapped view of the target's, where it has the usual name."""
    for file in sorted(folder.glob("*.safetensors")) if folder.is_dir() else []:
        try:
            with safe_open(file, framework="pt", device="cpu") as weights:
                if EMBEDDING in weights.keys():  # noqa: SIM118 - not a dict
                    found: torch.Tensor = weights.get_tensor(EMBEDDING)
                    return found
        except (SafetensorError, OSError):
            continue
    return None
