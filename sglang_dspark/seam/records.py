"""What the scheduler carries between our steps, and what a runner reads of a block forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.spec_info import SpecInput, SpecInputType

from sglang_dspark.seam.kv_slots import reserve_slots


@dataclass
class AnchorState(SpecInput):
    """The anchors of a running batch: all that one step hands to the next.

    Under overlap scheduling SGLang relays the values through its future map and fills
    `bonus_tokens` before the forward; `topk_p`, `topk_index` and `hidden_states` exist because its
    relay payload names them.
    """

    bonus_tokens: torch.Tensor  # [bs] int64, the next anchors
    new_seq_lens: torch.Tensor  # [bs] int64, committed tokens per request
    future_indices: torch.Tensor | None = None  # [bs] slots of the future map
    topk_p: torch.Tensor | None = None
    topk_index: torch.Tensor | None = None
    hidden_states: torch.Tensor | None = None

    def __post_init__(self) -> None:
        super().__init__(spec_input_type=SpecInputType.DFLASH_DRAFT)
        self.num_tokens_per_req = 1
        self.num_tokens_for_logprob_per_req = 1

    def prepare_for_decode(self, batch: Any) -> None:
        """Scheduler call before a decode step: reserve the KV slots the step may write."""
        reserve_slots(batch)

    def filter_batch(
        self, new_indices: torch.Tensor, new_indices_cpu: list[int] | None = None
    ) -> None:
        """Keep the requests at `new_indices` [n] of this batch."""
        if self.future_indices is not None:
            self.future_indices = self.future_indices[new_indices]
            return
        self.bonus_tokens = self.bonus_tokens[new_indices]
        self.new_seq_lens = self.new_seq_lens[new_indices]

    def merge_batch(self, other: AnchorState) -> None:
        """Append the requests of `other`."""
        if self.future_indices is not None:
            self.future_indices = torch.cat([self.future_indices, other.future_indices])
            return
        self.bonus_tokens = torch.cat([self.bonus_tokens, other.bonus_tokens])
        self.new_seq_lens = torch.cat([self.new_seq_lens, other.new_seq_lens])


@dataclass
class BlockRows(SpecInput):
    """Several rows per request in one forward: a verified window, or a draft block.

    Attention backends recognise it as a linear (top-k 1) verify input: row i of a request sits at
    position `seq_lens + i`.
    """

    draft_token: torch.Tensor  # [rows] int64 token ids
    positions: torch.Tensor  # [rows] int64
    draft_token_num: int  # rows per request; the most of any, where `row_counts` is given
    capture_hidden_mode: CaptureHiddenMode
    row_counts: torch.Tensor | None = None  # [bs] int64, rows of each request where they differ
    topk: int = 1
    custom_mask: torch.Tensor | None = None
    num_tokens_per_req: int = field(init=False)

    def __post_init__(self) -> None:
        super().__init__(spec_input_type=SpecInputType.DFLASH_VERIFY)
        self.num_tokens_per_req = self.draft_token_num
        self.num_tokens_for_logprob_per_req = self.draft_token_num

    def generate_attn_arg_prefill(
        self,
        *,
        req_pool_indices: torch.Tensor,  # [bs]
        paged_kernel_lens: torch.Tensor,  # [bs] committed lengths, our rows not counted
        paged_kernel_lens_sum: int,
        translator: Any,
        plan: Any,
        kv_start_idx: torch.Tensor | None = None,
        kv_indices_buf: torch.Tensor | None = None,
        **kind: Any,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, None]:
        """CSR attention arguments for GPU backends: KV indices, KV offsets, query offsets, mask."""
        device, bs, rows = req_pool_indices.device, req_pool_indices.numel(), self.draft_token_num
        query_offsets = torch.arange(bs + 1, dtype=torch.int32, device=device) * rows
        kv_lens = paged_kernel_lens + rows
        kv_offsets = torch.nn.functional.pad(kv_lens.cumsum(0, dtype=torch.int32), (1, 0))
        kv_indices = (
            torch.empty(paged_kernel_lens_sum + bs * rows, dtype=torch.int32, device=device)
            if kv_indices_buf is None
            else kv_indices_buf
        )
        translator.pack_read_stream(
            plan,
            req_pool_indices=req_pool_indices,
            seq_lens=kv_lens,
            indptr=kv_offsets,
            out=kv_indices,
            kv_start_idx=kv_start_idx,
            **kind,
        )
        return kv_indices, kv_offsets, query_offsets, None
