"""The host's view of a decode batch: who is in it and how long they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

I64 = npt.NDArray[np.int64]


def batch_slots(batch: Any) -> tuple[I64, I64]:
    """Request-pool index and generation of every request, both [bs]; no device read."""
    slots = batch.req_pool_indices_cpu.numpy().astype(np.int64, copy=False)
    generations = batch.req_to_token_pool.req_generation.numpy()[slots]
    return slots, generations


def context_tokens(batch: Any) -> int:
    """Committed tokens of all requests, as the host knows them (one step late under overlap)."""
    if batch.seq_lens_cpu is not None:
        return int(batch.seq_lens_cpu.sum())
    return sum(req.kv.kv_committed_len for req in batch.reqs)


class HostCopy:
    """A device tensor on its way to the host; on a CPU it is there at once."""

    def __init__(self, values_gpu: Tensor) -> None:
        self._host = values_gpu.detach().to("cpu", non_blocking=True)
        self._done = None
        if values_gpu.device.type != "cpu":
            self._done = torch.get_device_module(values_gpu.device).Event()
            self._done.record()

    def numpy(self) -> npt.NDArray[Any]:
        """Wait for the copy, which was started a step or more ago, and return it."""
        if self._done is not None:
            self._done.synchronize()
        return self._host.numpy()
