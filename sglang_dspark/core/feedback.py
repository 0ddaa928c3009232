"""What acceptance says about the confidences: one factor per position on predicted survival.

A head may be over-confident on today's traffic, or know nothing at all. The planner multiplies
survivals by observed / predicted acceptance of recent finished steps; being made of earlier
steps only, the factors are causal. The choice of drafts inside a budget does not use them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


class AcceptanceFeedback:
    """Decayed sums per position, pulled towards 1 by `prior_rows` rows of belief in the head."""

    def __init__(
        self, gamma: int, prior_rows: float = 4.0, keep: float = 0.99, keep_idle: float = 0.9995
    ) -> None:
        """keep: share of the sums that survives an observed step; keep_idle: any other one.

        Forgetting while nothing is verified is what lets a probe be believed again one day.
        """
        self._predicted = np.zeros(gamma)
        self._observed = np.zeros(gamma)
        self._prior, self._keep, self._keep_idle = prior_rows, keep, keep_idle
        self._factors = np.ones(gamma, dtype=np.float32)
        self._raises = False

    @property
    def factors(self) -> F32:
        """[gamma] in 0..1.5, never increasing, so that scaled survivals keep their order."""
        return self._factors

    def correct(self, survival: F32) -> None:
        """Scale survivals [bs, g] in place, g <= gamma, and cut them to 1."""
        survival *= self._factors[: survival.shape[1]]
        if self._raises:
            np.minimum(survival, np.float32(1), out=survival)

    def observe(self, survival: F32, draft_lens: npt.ArrayLike, accepted: npt.ArrayLike) -> None:
        """One verified step. survival: [bs, g] as it was when the windows were chosen;
        draft_lens, accepted: [bs] drafts verified and committed."""
        lens, kept = np.asarray(draft_lens)[:, None], np.asarray(accepted)[:, None]
        gamma = survival.shape[1]
        steps = np.arange(gamma)
        self._predicted *= self._keep
        self._observed *= self._keep
        self._predicted[:gamma] += np.where(steps < lens, survival, 0.0).sum(0)
        self._observed[:gamma] += (steps < np.minimum(kept, lens)).sum(0)
        self._refresh()

    def idle(self) -> None:
        """A step that verified no draft."""
        self._predicted *= self._keep_idle
        self._observed *= self._keep_idle
        self._refresh()

    def _refresh(self) -> None:
        ratio = (self._observed + self._prior) / (self._predicted + self._prior)
        self._factors = np.minimum.accumulate(np.minimum(ratio, 1.5)).astype(np.float32)
        self._raises = bool(self._factors[0] > 1)
