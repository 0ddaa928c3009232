"""A batch's sampling parameters in our words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sglang.srt.runtime_context import get_exec
from torch import Tensor

from sglang_dspark.ops.filters import Filters


@dataclass(frozen=True, slots=True)
class BatchParams:
    """Per-request settings of one batch; greedy is temperature 0, which SGLang writes top_k 1."""

    all_greedy: bool
    temperature: Tensor  # [bs] float32
    greedy: Tensor  # [bs] bool
    filters: Filters | None  # fields [bs]; None when no request filters


def read_params(batch: Any) -> BatchParams:
    """Settings of `batch.sampling_info`."""
    info = batch.sampling_info
    bs = len(batch.reqs)
    greedy = info.top_ks[:bs].flatten() <= 1
    filtered = info.need_top_k_sampling or info.need_top_p_sampling or info.need_min_p_sampling
    return BatchParams(
        all_greedy=info.is_all_greedy,
        temperature=info.temperatures[:bs].flatten().float(),
        greedy=greedy,
        filters=_filters(batch, bs) if filtered and not info.is_all_greedy else None,
    )


def _filters(batch: Any, bs: int) -> Filters:
    info = batch.sampling_info
    return Filters(
        top_k=info.top_ks[:bs].flatten(),
        top_p=info.top_ps[:bs].flatten(),
        min_p=info.min_ps[:bs].flatten(),
        backend=get_exec().kernel.sampling_backend,
        max_top_k=max(req.sampling_params.top_k for req in batch.reqs),
    )
