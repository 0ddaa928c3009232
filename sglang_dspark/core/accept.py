"""Reference acceptance of one request's block (paper.md, "One round", step 6).

Cut first, then decide: only the first `draft_len` drafts exist for the decision, and the rows of
the target after the window (cap-accept has them) are never looked at. Which law the next token
comes from depends on one fact, whether a draft was *rejected*:

* rejected at row k: the normalised positive part of p_t - p_d of row k (the correction);
* window used up: p_t of row draft_len (the bonus). Nothing was rejected, so no residual.

`accept_sampled` decides from uniforms; `transition_law` gives the probability of every outcome,
made of the same three pieces, and is what the losslessness proof enumerates.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.draw import inverse_cdf

F64 = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Accepted:
    accepted: int  # 0..draft_len
    next_token: int  # bonus or correction; the next anchor


def greedy_tokens(logits: Floats) -> Ints:
    """[..., V] -> [...]: the target's tokens at temperature 0; the lowest id wins a tie."""
    return np.asarray(np.argmax(logits, axis=-1))


def accept_tokens(drafts: Ints, target_tokens: Ints, draft_len: int) -> Accepted:
    """Greedy and coupled requests: accept while the draft equals the target's own token.

    drafts: [gamma]; target_tokens: [>= draft_len + 1], argmax or coupled draw of each row.
    """
    k = 0
    while k < draft_len and drafts[k] == target_tokens[k]:
        k += 1
    return Accepted(k, int(target_tokens[k]))


def accept_sampled(
    drafts: Ints,
    draft_probs: Floats | None,
    target_probs: Floats,
    draft_len: int,
    accept_uniforms: Floats,
    residual_uniform: float,
    bonus_uniform: float,
) -> Accepted:
    """Rejection sampling of a window of `draft_len` drafts.

    drafts: [gamma]; draft_probs: [gamma, V], the law that each draft was really drawn from, or
    None if drafts are point masses (an argmax); target_probs: [>= draft_len + 1, V];
    accept_uniforms: [gamma].
    """
    for k in range(draft_len):
        p, q = _row(target_probs, k), _draft_row(draft_probs, drafts, k, target_probs.shape[1])
        if not keeps(p, q, int(drafts[k]), float(accept_uniforms[k])):
            return Accepted(k, inverse_cdf(correction_weights(p, q), residual_uniform))
    return Accepted(draft_len, inverse_cdf(_row(target_probs, draft_len), bonus_uniform))


def transition_law(
    drafts: Ints, draft_probs: Floats | None, target_probs: Floats, draft_len: int
) -> F64:
    """[draft_len + 1, V]: P(a drafts accepted, next token y | drafts), exactly.

    Arguments as in `accept_sampled`; entries sum to 1.
    """
    vocab = target_probs.shape[1]
    law = np.zeros((draft_len + 1, vocab))
    reached = 1.0
    for k in range(draft_len):
        p, q = _row(target_probs, k), _draft_row(draft_probs, drafts, k, vocab)
        keep = keep_probability(p, q, int(drafts[k]))
        weights = correction_weights(p, q)
        law[k] = reached * (1.0 - keep) * weights / weights.sum()
        reached *= keep
    bonus = _row(target_probs, draft_len)
    law[draft_len] = reached * bonus / bonus.sum()
    return law


def keeps(p: F64, q: F64, token: int, uniform: float) -> bool:
    """The decision with probability `keep_probability`, without a division.

    Strict, and uniform > 0, so a token that the target gives no probability never passes.
    """
    return bool(uniform * q[token] < p[token])


def keep_probability(p: F64, q: F64, token: int) -> float:
    """min(1, p(x) / p_d(x)); p, q: [V]. A drafted token has q > 0."""
    return min(1.0, float(p[token] / q[token])) if q[token] > 0 else float(p[token] > 0)


def correction_weights(p: F64, q: F64) -> F64:
    """[V] un-normalised law of the token that replaces a rejected draft.

    A rejection at x means q(x) > p(x), and as both sum to 1 the positive part of p - q has mass.
    It has none only when the two sums differ by rounding while p and q agree (p <= q everywhere);
    then p itself is that law to within the same rounding.
    """
    residual: F64 = np.maximum(p - q, 0.0)
    return residual if residual.any() else p


def _row(probs: Floats, k: int) -> F64:
    return np.asarray(probs[k], dtype=np.float64)


def _draft_row(draft_probs: Floats | None, drafts: Ints, k: int, vocab: int) -> F64:
    if draft_probs is not None:
        return _row(draft_probs, k)
    point = np.zeros(vocab)
    point[drafts[k]] = 1.0
    return point
