"""The draft's model runner: built beside the target, run once a step, fed with context KV."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.moe.utils import draft_model_build_scope
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.runtime_context import attention_backends, get_spec
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

from sglang_dspark.seam.draft_config import target_shape
from sglang_dspark.seam.draft_model import DraftModel
from sglang_dspark.seam.records import BlockRows
from sglang_dspark.seam.window import Window

MOST_KEPT_ROWS = 256  # of captured layer outputs; a page or two of memory per row


class DraftRunner:
    """SGLang's runner and KV pool of the draft model, behind four calls."""

    def __init__(
        self, server_args: Any, gpu_id: int, nccl_port: int, target: TpModelWorker, gamma: int
    ) -> None:
        backend = get_spec().speculative_draft_attention_backend or attention_backends()[0]
        with draft_model_build_scope():
            self.worker = TpModelWorker(
                server_args=server_args,
                gpu_id=gpu_id,
                nccl_port=nccl_port,
                is_draft_worker=True,
                random_seed=target.random_seed,
                # The draft runs at the target's absolute positions.
                context_length=target.model_runner.model_config.context_len,
                draft_attention_backend=backend,
            )
        self.attention_backend = backend
        self._runner = self.worker.model_runner
        self.worker.draft_runner = self._runner  # read by SGLang's weight and memory reports
        self.model: DraftModel = self._runner.model
        self.gamma = gamma
        self._rows = [_block_rows(width) for width in range(gamma + 1)]
        self._block_ids = torch.empty((0, gamma), dtype=torch.int64)
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []  # (features, positions, slots)
        self._kept_rows = 0

    def attach(self, target: TpModelWorker) -> str | None:
        """Load the draft's weights against the target's embedding and LM head."""
        model = target.model_runner.model
        embed = model.get_input_embeddings() if hasattr(model, "get_input_embeddings") else None
        embed = model.model.embed_tokens if embed is None else embed
        shape = target_shape(target.model_runner.model_config)
        head = model.lm_head

        def lm_head(hidden: Tensor) -> Tensor:
            # Looked up at every call: what multiplies may be replaced after a weight update.
            return head.quant_method.apply(head, hidden)

        return self.model.attach(shape, embed.weight, lm_head)

    @property
    def attn_backend(self) -> Any:
        return self._runner.attn_backend

    def forward(self, batch: Any, anchors: Tensor, window: Window, num_drafts: int) -> Tensor:
        """Backbone hidden states of a block per request: anchors [bs] int64 -> [bs * g, H].

        num_drafts: g, rows of the block; at most the gamma given at construction.
        """
        self._write_kept()
        num_rows = anchors.shape[0] * num_drafts
        sum_, lens = batch.seq_lens_sum, batch.seq_lens_cpu
        rows = ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=anchors.shape[0],
            input_ids=self._ids(anchors)[:, :num_drafts].flatten(),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=batch.seq_lens,
            out_cache_loc=window.slots[:, :num_drafts].flatten(),
            # Host lengths of a block count its rows, device lengths do not.
            seq_lens_sum=None if sum_ is None else int(sum_) + num_rows,
            seq_lens_cpu=None if lens is None else lens + num_drafts,
            positions=window.positions[:, :num_drafts].flatten(),
            spec_algorithm=SpeculativeAlgorithm.DSPARK,
            spec_info=self._rows[num_drafts],
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        window.plan.bind(rows, self._runner.kv_index_translator, cols=slice(0, num_drafts))
        return self._runner.forward(rows).logits_output.hidden_states

    def write_context(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Store the draft's keys and values of committed rows.

        features [n, m H], the target's captured layer outputs; positions, slots [n] int64.
        """
        self._write_kept()  # a slot may have changed hands since: the newer row comes last
        keys, values = self.model.backbone.context_kv(features, positions)
        self._store(keys, values, slots)

    def keep_context(self, features: Tensor, positions: Tensor, slots: Tensor) -> None:
        """`write_context`, at the latest before a draft or another write: many rows cost little
        more than one, and while nothing is drafted nobody reads them."""
        self._kept.append((features, positions, slots))
        self._kept_rows += slots.shape[0]
        if self._kept_rows >= MOST_KEPT_ROWS:
            self._write_kept()

    def _write_kept(self) -> None:
        if not self._kept:
            return
        features, positions, slots = zip(*self._kept, strict=True)
        self._kept, self._kept_rows = [], 0
        keys, values = self.model.backbone.context_kv(torch.cat(features), torch.cat(positions))
        start = 0
        for each in slots:  # one by one: the later row of a slot must win
            rows = slice(start, start := start + each.shape[0])
            self._store(keys[:, rows], values[:, rows], each)

    def _store(self, keys: Tensor, values: Tensor, slots: Tensor) -> None:
        """keys, values [L, n, nkv, D]."""
        pool = self._runner.token_to_kv_pool
        for layer, (k, v) in enumerate(zip(keys, values, strict=True)):
            pool.set_kv_buffer(self.model.attention[layer], slots, k, v)

    def _ids(self, anchors: Tensor) -> Tensor:
        """[bs, gamma] input ids: the anchor, then mask tokens; one buffer, grown when needed."""
        bs = anchors.shape[0]
        if self._block_ids.shape[0] < bs:
            self._block_ids = torch.full(
                (bs, self.gamma), self.model.draft.mask_token_id, device=anchors.device
            )
        ids = self._block_ids[:bs]
        ids[:, 0] = anchors
        return ids


def _block_rows(num_drafts: int) -> BlockRows:
    return BlockRows(
        draft_token=torch.empty(0, dtype=torch.int64),
        positions=torch.empty(0, dtype=torch.int64),
        draft_token_num=num_drafts,
        capture_hidden_mode=CaptureHiddenMode.NULL,
    )
