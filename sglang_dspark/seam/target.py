"""Forwards of the target model: prefill, and the rows of a verified window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from torch import Tensor

from sglang_dspark.ops.layout import RowLayout
from sglang_dspark.seam.records import BlockRows
from sglang_dspark.seam.window import Window


@dataclass(frozen=True, slots=True)
class TargetRows:
    """What the target says about a set of rows."""

    logits: Tensor  # [bs, V] after a prefill, [bs * width, V] of a window
    features: Tensor  # [rows, m H] captured layer outputs of every row
    output: Any  # SGLang's logits output, for the batch result
    used_graph: bool
    positions: Tensor | None = None  # [rows] int64; of a window only
    slots: Tensor | None = None  # [rows] int64 KV slots; of a window only


class Target:
    """The target's worker behind two calls."""

    def __init__(self, worker: TpModelWorker) -> None:
        self._worker = worker

    def prefill(self, batch: Any) -> TargetRows:
        """Run an extend batch without SGLang's sampler; features of all its rows."""
        result = self._worker.forward_batch_generation(
            batch, is_verify=True, capture_hidden_mode=CaptureHiddenMode.FULL
        )
        return _rows(result)

    def verify(
        self, batch: Any, ids: Tensor, window: Window, layout: RowLayout | None
    ) -> TargetRows:
        """Run rows of the window: ids [bs, width] int64, row 0 the anchor.

        layout: which rows of each request to run, packed; None for all of them.
        """
        bs, width = ids.shape
        positions, slots, cols = window.positions.flatten(), window.slots.flatten(), None
        ids = ids.flatten()
        if layout is not None:
            cols = layout.request * width + layout.row  # [rows] index into the window
            ids, positions, slots = ids[cols], positions[cols], slots[cols]
        batch.input_ids = ids
        batch.spec_info = BlockRows(
            draft_token=ids,
            positions=positions,
            draft_token_num=width,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            row_counts=None if layout is None else layout.cu_seqlens.diff(),
        )
        batch.out_cache_loc = slots
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        rows = ForwardBatch.init_new(
            batch,
            self._worker.model_runner,
            capture_hidden_mode=CaptureHiddenMode.FULL,
            return_hidden_states_before_norm=False,
            kv_loc_plan=window.plan,
            write_cols=cols,
        )
        if rows.seq_lens_cpu is not None:
            # Host lengths of a verify batch count its rows, device lengths do not.
            rows.seq_lens_cpu = rows.seq_lens_cpu + width
            rows.seq_lens_sum = int(rows.seq_lens_sum) + bs * width
        result = self._worker.forward_batch_generation(None, forward_batch=rows, is_verify=True)
        return replace(_rows(result), positions=positions, slots=slots)


def _rows(result: Any) -> TargetRows:
    output = result.logits_output
    if output.hidden_states is None:
        raise RuntimeError("DSPARK: the target returned no captured layer outputs")
    features, output.hidden_states = output.hidden_states, None
    return TargetRows(
        logits=output.next_token_logits,
        features=features,
        output=output,
        used_graph=result.can_run_cuda_graph,
    )


def prefill_positions(batch: Any) -> Tensor:
    """[rows] int64 absolute positions of an extend batch's rows, on the batch's device."""
    rows = [
        np.arange(start, start + count)
        for start, count in zip(batch.prefix_lens, batch.extend_lens, strict=True)
    ]
    return torch.from_numpy(np.concatenate(rows)).to(batch.seq_lens.device, non_blocking=True)
