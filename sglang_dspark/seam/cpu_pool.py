"""The KV pool of our CPU platform: SGLang's, without its fill at start and its Triton copy."""

from __future__ import annotations

import torch
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool


class CpuKVPool(MHATokenToKVPool):
    """SGLang's per-layer pool, except that memory is taken when a slot is first written.

    Stock fills the pool with zeros at start. Nothing reads a slot before it is written (padding in
    our plans repeats a written slot), and a fresh page costs a fault of a few us, once.
    """

    def __init__(self, *args, enable_kv_cache_copy: bool = False, **kwargs) -> None:
        # The copy path that speculation asks for is a Triton kernel.
        super().__init__(*args, enable_kv_cache_copy=False, **kwargs)
        self.use_native_move_kv_cache = True

    def _create_buffers_normal(self) -> None:
        k_shape, v_shape = self._kv_buffer_shapes()

        def buffers(shape):
            return [torch.empty(shape, dtype=self.store_dtype) for _ in range(self.layer_num)]

        self.k_buffer, self.v_buffer = buffers(k_shape), buffers(v_shape)
