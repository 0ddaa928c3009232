"""Logits -> the probabilities that SGLang's sampler would draw from, per sampling backend.

Facts read in sglang 0.5.23 `srt/layers/sampler.py` and flashinfer's `sampling.cuh`; in all of
them the kept tokens are the first ones in order of falling probability:

* `pytorch`: top-k and top-p are judged *jointly* on un-renormalised probabilities: rank i stays
  when i < k and the mass before it is <= top_p; then min-p: p >= min_p * max(p). Ties at the edge
  are ranked (here by id; stock leaves it to the sort), so exactly the counted tokens stay.
* `flashinfer`: rank i < k and mass before it < top_p, also jointly, and all ties of the last kept
  token stay. A request with min-p is served in sequence instead: top-k, renormalise, top-p,
  renormalise, min-p. (Stock goes by whether *any* request of the batch has min-p; we go by the
  request, so that its law does not depend on its neighbours.)

Twin: `core/filters.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Backend = Literal["pytorch", "flashinfer"]


@dataclass(frozen=True, slots=True)
class Filters:
    """Per-row settings, shaped to broadcast over the leading dimensions of the logits.

    [bs, 1] serves logits [bs, gamma + 1, V]; [n] serves [n, V]. A row without a filter has
    top_k >= V (SGLang writes 2^30), top_p 1.0, min_p 0.0.
    """

    top_k: Tensor  # int
    top_p: Tensor  # float32
    min_p: Tensor  # float32
    backend: Backend
    max_top_k: int | None  # >= every top_k if known on the host: top-k instead of a full sort

    def __post_init__(self) -> None:
        if self.backend not in ("pytorch", "flashinfer"):
            raise ValueError(
                f"sampling backend {self.backend!r} is not supported with DSPARK; "
                "start with --sampling-backend pytorch or flashinfer"
            )


def target_probs(logits: Tensor, temperature: Tensor, filters: Filters | None) -> Tensor:
    """softmax(logits / T), filtered and renormalised.

    logits [..., V] float32; temperature broadcasts over [...]. `filters` None, when no request
    uses one, costs nothing. Returns [..., V] float32, rows sum to 1.
    """
    probs = torch.softmax(logits / temperature.unsqueeze(-1), -1)
    return probs if filters is None else filter_probs(probs, filters)


def filter_probs(probs: Tensor, filters: Filters) -> Tensor:
    """Zero what the filters drop and renormalise. probs [..., V] float32, rows sum to 1."""
    kept = probs.where(_keep(probs, filters), 0.0)
    return kept.div_(kept.sum(-1, keepdim=True))


def _keep(probs: Tensor, filters: Filters) -> Tensor:
    vocab = probs.shape[-1]
    top_k, top_p = filters.top_k.unsqueeze(-1), filters.top_p.unsqueeze(-1)
    min_p = filters.min_p.unsqueeze(-1)
    if filters.max_top_k is not None and filters.max_top_k < vocab:
        ranked = probs.topk(filters.max_top_k, dim=-1).values
    else:
        ranked = probs.sort(dim=-1, descending=True).values
    before = ranked.cumsum(-1) - ranked
    in_k = torch.arange(ranked.shape[-1], device=probs.device) < top_k
    in_p = (
        (before <= top_p)
        if filters.backend == "pytorch"
        else _flashinfer_top_p(probs, ranked, before, top_k, top_p, min_p)
    )
    # top_p = 1 keeps all: rounding of the running sum must not cut the tail.
    in_p |= top_p >= 1.0
    kept = in_k & in_p & (ranked >= ranked[..., :1] * min_p)
    count = kept.sum(-1, keepdim=True).clamp_(min=1)
    edge = ranked.gather(-1, count - 1)
    if filters.backend == "flashinfer":
        return probs >= edge
    # Of the tokens tied at the edge only so many stay, the lowest ids.
    room = count - (ranked > edge).sum(-1, keepdim=True)
    tied = probs == edge
    return (probs > edge) | (tied & (tied.cumsum(-1) <= room))


def _flashinfer_top_p(
    probs: Tensor, ranked: Tensor, before: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor
) -> Tensor:
    # With min-p, top-p looks at the probabilities renormalised after top-k (ties included).
    edge = ranked.gather(-1, (top_k.to(torch.int64) - 1).clamp_(max=ranked.shape[-1] - 1))
    mass = torch.where(probs >= edge, probs, 0.0).sum(-1, keepdim=True)
    return before < top_p * torch.where(min_p > 0, mass, 1.0)
