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
    """Decayed sums per position; `prior_rows` rows pull towards what was believed before them."""

    def __init__(
        self, gamma: int, prior_rows: float = 1.0, keep: float = 0.95, keep_idle: float = 0.9995
    ) -> None:
        """keep: share of the sums that survives an observed step, so that a few requests are judged
        by what they did lately; keep_idle: any other step's.

        What an observed step forgets is replaced by trust in the head, so that positions that are
        verified no more are tried again. Forgetting while nothing is verified lets a probe count
        again one day, and leaves the belief as it was: time alone is no reason to expect more.
        """
        self._predicted = np.zeros(gamma)
        self._observed = np.zeros(gamma)
        self._prior, self._keep, self._keep_idle = prior_rows, keep, keep_idle
        self._num_idle = 0  # steps since the last observed one
        self._belief = np.ones(gamma)  # factors before anything was observed, or lately
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
        awake = self._keep_idle**self._num_idle
        self._num_idle = 0
        self._belief += (1.0 - awake) * (self._factors - self._belief)
        self._belief += (1.0 - self._keep) * (1.0 - self._belief)
        self._predicted *= self._keep * awake
        self._observed *= self._keep * awake
        self._predicted[:gamma] += np.where(steps < lens, survival, 0.0).sum(0)
        self._observed[:gamma] += (steps < np.minimum(kept, lens)).sum(0)
        prior = self._prior * self._belief
        ratio = (self._observed + prior) / (self._predicted + self._prior)
        self._factors = np.minimum.accumulate(np.minimum(ratio, 1.5)).astype(np.float32)
        self._raises = bool(self._factors[0] > 1)

    def idle(self) -> None:
        """A step that verified no draft."""
        self._num_idle += 1
