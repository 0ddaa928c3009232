"""What our CPU attention backend reads of SGLang's layers, batches and KV pool."""

from __future__ import annotations

from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType
from torch import Tensor

from sglang_dspark.seam.cpu_platform import ATTENTION_BACKEND
from sglang_dspark.seam.cpu_pool import CpuKVPool

__all__ = ["ATTENTION_BACKEND", "AttentionBackend"]


def kv_row_bytes(kv_pool) -> int:
    """Bytes of one slot's K in one layer."""
    return kv_pool.head_num * kv_pool.head_dim * kv_pool.dtype.itemsize


def write_kv(kv_pool, layer, slots: Tensor, k: Tensor, v: Tensor) -> None:
    """K, V [rows, kv_heads, head_dim] into the layer's buffers at `slots` [rows]."""
    if type(kv_pool) is CpuKVPool and k.dtype == kv_pool.dtype:
        at = layer.layer_id - kv_pool.start_layer
        kv_pool.k_buffer[at].index_copy_(0, slots, k)
        kv_pool.v_buffer[at].index_copy_(0, slots, v)
    else:
        kv_pool.set_kv_buffer(layer, slots, k, v)


def is_block_layer(layer) -> bool:
    """A layer whose rows also see the later rows of their own block (a draft's layers)."""
    return layer.attn_type == AttentionType.ENCODER_ONLY


def verify_row_counts(spec_info, num_reqs: int) -> list[int]:
    """New rows of each request in a TARGET_VERIFY forward, on the target or on the draft.

    First that is there: `spec_info.row_counts` (a CPU int tensor [num_reqs], ours), SGLang's
    `spec_info.ragged_verify_layout`, and `spec_info.draft_token_num` rows for every request.
    """
    if spec_info.custom_mask is not None:
        raise NotImplementedError(
            f"--attention-backend {ATTENTION_BACKEND} verifies chains, not trees: "
            "NGRAM and EAGLE with top-k above 1 do not run on it"
        )
    row_counts = getattr(spec_info, "row_counts", None)  # not a field of SGLang's own records
    layout = spec_info.ragged_verify_layout
    if row_counts is not None:
        counts = row_counts.tolist()
    elif layout is not None:
        counts = layout.verify_lens.tolist()
    else:
        counts = [int(spec_info.draft_token_num)] * num_reqs
    if len(counts) != num_reqs or min(counts) < 1:
        raise ValueError(f"row counts {counts} for a batch of {num_reqs}: one or more each")
    return counts


def extend_row_counts(forward_batch) -> list[int]:
    counts = forward_batch.extend_seq_lens_cpu
    return forward_batch.extend_seq_lens.tolist() if counts is None else list(counts)


def refuse_unsupported_layer(layer, kwargs: dict) -> None:
    """Whatever the layer asks beyond plain scaled dot products would be silently wrong."""
    wanted = [name for name, value in kwargs.items() if value is not None]
    if layer.logit_cap:
        wanted.append("logit_cap")
    if layer.is_cross_attention:
        wanted.append("cross attention")
    if layer.attn_type == AttentionType.DECODER_BIDIRECTIONAL:
        wanted.append("bidirectional image tokens")
    if wanted:
        raise NotImplementedError(
            f"--attention-backend {ATTENTION_BACKEND} does not do {', '.join(wanted)}, "
            "which this model's attention asks for: serve it on another device"
        )
