"""The KV pool of our CPU platform: SGLang's, without the Triton kernel that copies slots."""

from __future__ import annotations

from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, move_kv_cache_native
from torch import Tensor


class CpuKVPool(MHATokenToKVPool):
    """Slots are moved by tensor indexing; the pool's warm-up of a device kernel is left out."""

    def _init_kv_copy_and_warmup(self) -> None:
        self._kv_copy_config = None

    def _move_kv_cache_impl(self, tgt_loc: Tensor, src_loc: Tensor) -> None:
        move_kv_cache_native(self.k_buffer, self.v_buffer, tgt_loc, src_loc)
