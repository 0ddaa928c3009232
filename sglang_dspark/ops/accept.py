"""Batched acceptance (paper.md, "One round", step 6): no host reads, no loop over requests.

Twin: `core/accept.py`. The two take the same decisions on equal inputs, because both compare and
add up in float64 whatever the type of the probabilities.

`draft_lens` [bs] is the window, 0..gamma, and None the whole block. Rows of the target after the
window may exist (cap-accept) or not (compact): they are never read for a decision. The block is
cut first and decided afterwards, so a window that is used up yields the bonus from its own last
row and never the residual.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sglang_dspark.ops.draw import inverse_cdf
from sglang_dspark.ops.noise import BlockUniforms


@dataclass(frozen=True, slots=True)
class Accepted:
    """What a block commits: `accepted` drafts, then the next token (bonus or correction)."""

    accepted: Tensor  # [bs] int64, 0..draft_len
    next_token: Tensor  # [bs] int64


def accept_tokens(
    drafts: Tensor, target_tokens: Tensor, draft_lens: Tensor | None = None
) -> Accepted:
    """Deterministic rows only (greedy, coupled): accept while equal to the target's own token.

    drafts [bs, gamma] int64; target_tokens [bs, gamma + 1] int64, the argmax or the coupled draw.
    """
    agree = _cut(drafts == target_tokens[:, :-1], draft_lens)
    accepted = _leading(agree)
    return Accepted(accepted, _at(target_tokens, accepted))


def accept_sampled(
    drafts: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    draft_lens: Tensor | None,
    uniforms: BlockUniforms,
    row_start: Tensor | None = None,
) -> Accepted:
    """Rejection sampling: x_k stays with probability min(1, p_t(x_k) / p_d(x_k)).

    drafts [bs, gamma] int64; draft_probs [bs, gamma, V] float32, the law each draft was drawn
    from, or None when drafts are point masses (an argmax); target_probs [bs, gamma + 1, V]
    float32, or packed rows [n, V] together with row_start [bs], the packed row of each anchor.
    """
    bs, gamma = drafts.shape
    requests = torch.arange(bs, device=drafts.device)
    if row_start is None:
        p_drafted = _pick(target_probs[:, :gamma], drafts)
        rows, row_start = target_probs.flatten(0, 1), requests * (gamma + 1)
    else:
        rows = target_probs
        steps = torch.arange(gamma, device=drafts.device)
        # Rows past the window belong to the next request; `_cut` drops what is read there.
        index = (row_start.unsqueeze(1) + steps).clamp_(max=rows.shape[0] - 1)
        p_drafted = rows[index, drafts]
    chance = uniforms.accept
    if draft_probs is not None:
        chance = chance * _pick(draft_probs, drafts)
    accepted = _leading(_cut(chance < p_drafted, draft_lens))
    rejected = accepted < (gamma if draft_lens is None else draft_lens)
    p = rows.index_select(0, row_start + accepted).to(torch.float64)  # [bs, V]
    if gamma == 0:
        return Accepted(accepted, inverse_cdf(p, uniforms.bonus))
    last = accepted.clamp(max=gamma - 1)
    if draft_probs is None:
        residual = p.scatter(1, _at(drafts, last).unsqueeze(1), 0.0)
    else:
        q = draft_probs.flatten(0, 1).index_select(0, requests * gamma + last)
        residual = (p - q).clamp_min_(0.0)
    # p <= q everywhere with a rejection happens when p and q agree up to rounding.
    use_residual = rejected & (residual > 0).any(1)
    weights = torch.where(use_residual.unsqueeze(1), residual, p)
    u = torch.where(rejected, uniforms.residual, uniforms.bonus)
    return Accepted(accepted, inverse_cdf(weights, u))


def accept_mixed(
    drafts: Tensor,
    draft_probs: Tensor | None,
    target_probs: Tensor,
    draft_lens: Tensor | None,
    uniforms: BlockUniforms,
    deterministic: Tensor,
    target_tokens: Tensor,
    row_start: Tensor | None = None,
) -> Accepted:
    """A batch of both kinds: `deterministic` [bs] bool rows as `accept_tokens`, the rest sampled.

    target_tokens [bs, gamma + 1] int64 counts in deterministic rows only; the probabilities of
    those rows may be anything that is not NaN.
    """
    fixed = accept_tokens(drafts, target_tokens, draft_lens)
    drawn = accept_sampled(drafts, draft_probs, target_probs, draft_lens, uniforms, row_start)
    return Accepted(
        torch.where(deterministic, fixed.accepted, drawn.accepted),
        torch.where(deterministic, fixed.next_token, drawn.next_token),
    )


def _cut(agree: Tensor, draft_lens: Tensor | None) -> Tensor:
    if draft_lens is None:
        return agree
    steps = torch.arange(agree.shape[1], device=agree.device)
    return agree.logical_and_(steps < draft_lens.unsqueeze(1))


def _leading(agree: Tensor) -> Tensor:
    return agree.cumprod(1).sum(1)


def _pick(probs: Tensor, tokens: Tensor) -> Tensor:
    return probs.gather(2, tokens.unsqueeze(2)).squeeze(2)


def _at(values: Tensor, index: Tensor) -> Tensor:
    return values.gather(1, index.unsqueeze(1)).squeeze(1)
