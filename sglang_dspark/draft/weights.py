"""Strict loading of a draft's safetensors: every tensor is expected, present and of its shape."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from sglang_dspark.draft.checkpoint import DraftConfig
from sglang_dspark.draft.fields import DRAFT_PATH_FLAG, CheckpointError
from sglang_dspark.draft.target import TargetShape, check_vocab_padding
from sglang_dspark.draft.tensors import find_weight_files, iter_expected_shapes

# Copies of the target's frozen matrices. They may be absent and are never loaded.
TARGET_COPIES = ("embed_tokens.weight", "lm_head.weight")
_VOCAB_ROWS = ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight")
_PREFIXES = ("_orig_mod.", "model.")
_FLOATS = ("F64", "F32", "F16", "BF16")


def canonical_name(name: str) -> str:
    """The name without what torch.compile or a wrapping model put in front of it."""
    while name.startswith(_PREFIXES):
        name = name.split(".", 1)[1]
    return name.replace("._orig_mod.", ".")


def load_draft_weights(
    config: DraftConfig,
    target: TargetShape,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> dict[str, torch.Tensor]:
    """All tensors of `iter_expected_shapes`, by canonical name, and nothing else.

    markov_w1 and markov_w2 come with `target.vocab_size` rows: padding rows of the file are
    dropped, and rows that it lacks are zero, which means "no bias". The confidence head stays fp32.
    Tensors that need no conversion are memory-mapped views of the file.
    """
    with _DraftFiles(config.path) as files:
        _check_tensors(config, target, files)
        weights = {}
        for name, _ in iter_expected_shapes(config):
            tensor = files.tensor(name)
            if name in _VOCAB_ROWS:
                tensor = _with_rows(tensor, target.vocab_size)
            wanted = torch.float32 if name.startswith("confidence_head.") else dtype
            weights[name] = tensor.to(device=device, dtype=wanted)
    return weights


def check_same_target(config: DraftConfig, target_embedding: torch.Tensor) -> str | None:
    """Compare a few rows of the draft's own copy of the embedding with the target's.

    target_embedding: [at least vocab_size, H]. Returns None when they agree or the draft has no
    copy, a warning for a related target (a fine-tune), and refuses an unrelated one. Output stays
    right with any target; only acceptance suffers.
    """
    with _DraftFiles(config.path) as files:
        if TARGET_COPIES[0] not in files.sources:
            return None
        source = files.rows(TARGET_COPIES[0])
        count = min(source.get_shape()[0], target_embedding.shape[0])
        ids = sorted({*range(0, count, max(1, count // 32))})
        copy = torch.stack([source[i] for i in ids]).float()
    rows = target_embedding[torch.tensor(ids, device=target_embedding.device)].float().cpu()
    similarity = torch.cosine_similarity(copy, rows, dim=1)
    # Untrained rows may be zero on both sides.
    alike = torch.where((copy == rows).all(1), torch.ones_like(similarity), similarity)
    what = (
        f"{config.path}: embed_tokens is a copy of the embedding the draft was trained with; "
        f"{len(ids)} of its rows were compared with this target's: median cosine "
        f"{alike.median():.4f}"
    )
    if alike.median() < 0.9:
        raise CheckpointError(
            f"{what}; the draft belongs to another target, give this target's with "
            f"{DRAFT_PATH_FLAG}"
        )
    if alike.min() < 0.999:
        return f"{what}, lowest {alike.min():.4f}; expect a lower accept length"
    return None


def _with_rows(tensor: torch.Tensor, rows: int) -> torch.Tensor:
    """[n, r] -> [rows, r], cut or extended with zeros."""
    missing = rows - tensor.shape[0]
    if missing <= 0:
        return tensor[:rows]
    return torch.cat([tensor, tensor.new_zeros(missing, tensor.shape[1])])


def _check_tensors(config: DraftConfig, target: TargetShape, files: _DraftFiles) -> None:
    problems = list(files.problems)
    expected = dict(iter_expected_shapes(config))
    for name in expected.keys() - files.sources.keys():
        problems.append(f"missing: {name} {list(expected[name])}")
    for name, (_, stored_as) in files.sources.items():
        if name in TARGET_COPIES:
            problems += _problem_of_copy(config, target, files, name)
        elif name not in expected:
            problems.append(f"left over: {stored_as} {files.shape(name)}")
        elif tuple(files.shape(name)) != expected[name]:
            problems.append(
                f"wrong shape: {stored_as} is {files.shape(name)}, expected {list(expected[name])}"
            )
        elif files.dtype(name) not in _FLOATS:
            problems.append(
                f"wrong type: {stored_as} is {files.dtype(name)}, expected one of "
                f"{', '.join(_FLOATS)} (quantised drafts are not supported yet)"
            )
    if problems:
        lines = "\n  ".join(sorted(problems))
        raise CheckpointError(
            f"{config.path}: the weights do not match config.json; correct the one that is wrong "
            f"or give another draft with {DRAFT_PATH_FLAG}:\n  {lines}"
        )


def _problem_of_copy(
    config: DraftConfig, target: TargetShape, files: _DraftFiles, name: str
) -> Iterator[str]:
    """A copy of the target's matrix may have padding rows more or less, nothing else."""
    shape = files.shape(name)
    if len(shape) != 2 or shape[1] != config.hidden_size:
        yield f"wrong shape: {name} is {shape}, expected [vocabulary, {config.hidden_size}]"
        return
    try:
        check_vocab_padding(f"the row count of {name}", shape[0], target, config.path)
    except CheckpointError as error:
        yield f"wrong shape: {error}"


class _DraftFiles:
    """Open safetensors files of one draft, addressed by canonical name."""

    def __init__(self, draft_dir: Path) -> None:
        self.sources: dict[str, tuple[Path, str]] = {}  # canonical name -> (file, stored name)
        self.problems: list[str] = []
        self._stack = ExitStack()
        self._open: dict[Path, Any] = {}  # safetensors has no types
        self._draft_dir = draft_dir

    def __enter__(self) -> _DraftFiles:
        for file in find_weight_files(self._draft_dir):
            try:
                handle = self._stack.enter_context(safe_open(file, framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                self._stack.close()
                raise CheckpointError(
                    f"{file}: not a readable safetensors file ({error}); download it again"
                ) from error
            self._open[file] = handle
            for stored in handle.keys():  # noqa: SIM118 - not a dict
                self._add(file, stored)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _add(self, file: Path, stored: str) -> None:
        name = canonical_name(stored)
        if name in self.sources:
            other_file, other = self.sources[name]
            self.problems.append(
                f"twice: {name}, as {other} in {other_file.name} and as {stored} in {file.name}"
            )
        self.sources[name] = (file, stored)

    def rows(self, name: str) -> Any:
        """Unread view of a tensor, for its shape, type and single rows."""
        file, stored = self.sources[name]
        return self._open[file].get_slice(stored)

    def shape(self, name: str) -> list[int]:
        return list(self.rows(name).get_shape())

    def dtype(self, name: str) -> str:
        return str(self.rows(name).get_dtype())

    def tensor(self, name: str) -> torch.Tensor:
        file, stored = self.sources[name]
        tensor: torch.Tensor = self._open[file].get_tensor(stored)
        return tensor
