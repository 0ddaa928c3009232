"""The attention backend `dspark_cpu`: SGLang's forward batches in, `attend` results out."""

from __future__ import annotations

from torch import Tensor

from sglang_dspark.cpu.attention import attend
from sglang_dspark.cpu.plan import AttentionPlan, build_plan
from sglang_dspark.seam import cpu_attention as seam

# Bytes of K (and as many of V) that one call may gather from the pool.
GATHER_BYTES = 64 << 20


class CpuAttentionBackend(seam.AttentionBackend):
    """Ragged attention on torch's CPU device.

    `forward_batch.seq_lens` as stock backends read it: in DECODE and EXTEND (also MIXED) it counts
    the new rows, which `req_to_token` already maps; in TARGET_VERIFY it is the committed context
    only, the new rows stand behind it and their KV lies at `out_cache_loc`.
    """

    def __init__(self, model_runner) -> None:
        super().__init__()
        if model_runner.device != "cpu":
            raise ValueError(
                f"--attention-backend {seam.ATTENTION_BACKEND} serves on a CPU only, not on "
                f"{model_runner.device}: leave the flag out, or name a backend of that device"
            )
        self.req_to_token = model_runner.req_to_token_pool.req_to_token
        self.kv_pool = model_runner.token_to_kv_pool
        self.max_gathered = GATHER_BYTES // seam.kv_row_bytes(self.kv_pool)
        self.plan: AttentionPlan | None = None

    def init_forward_metadata(self, forward_batch) -> None:
        mode = forward_batch.forward_mode
        self.plan = None if mode.is_idle() else self._plan(forward_batch, mode)

    def _plan(self, forward_batch, mode) -> AttentionPlan:
        lens = forward_batch.seq_lens.tolist()
        new_slots = None
        if mode.is_decode():
            row_counts = [1] * len(lens)
        elif mode.is_target_verify():
            row_counts = seam.verify_row_counts(forward_batch.spec_info, len(lens))
            lens = [length + rows for length, rows in zip(lens, row_counts, strict=True)]
            new_slots = forward_batch.out_cache_loc
        else:
            row_counts = seam.extend_row_counts(forward_batch)
        return build_plan(
            req_to_token=self.req_to_token,
            req_indices=forward_batch.req_pool_indices,
            kv_lens=lens,
            row_counts=row_counts,
            new_slots=new_slots,
            max_gathered=self.max_gathered,
        )

    def forward(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer,
        forward_batch,
        save_kv_cache: bool = True,
        **kwargs,
    ) -> Tensor:
        """q, result: [rows, heads * head_dim]; k, v: [rows, kv_heads, head_dim]."""
        if self.plan is None:  # idle
            return q.new_empty(q.shape[0], layer.tp_q_head_num * layer.v_head_dim)
        seam.refuse_unsupported_layer(layer, kwargs)
        if save_kv_cache and k is not None:
            seam.write_kv(self.kv_pool, layer, forward_batch.out_cache_loc, k, v)
        k_pool, v_pool = self.kv_pool.get_kv_buffer(layer.layer_id)
        out = attend(
            q.view(-1, layer.tp_q_head_num, layer.qk_head_dim),
            k_pool,
            v_pool,
            self.plan,
            causal=not seam.is_block_layer(layer),
            window=layer.sliding_window_size,
            scale=layer.scaling,
        )
        return out.view(-1, layer.tp_q_head_num * layer.v_head_dim)

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        return 1

    def support_triton(self) -> bool:
        return False
