"""What acceptance says about the confidences: one factor per position on predicted survival.

A head may be over-confident on today's traffic, or know nothing at all. The planner multiplies
survivals by observed / predicted acceptance of recent finished steps; being made of earlier
steps only, the factors are causal. The choice of drafts inside a budget does not use them.

Factors are kept by request count, in powers of two. The last requests of a busy time are its
slowest, those whose drafts did badly, and what a few of them did lately is no measure for the
many that come next.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.running import crowd_of, nearest_crowd

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]


class AcceptanceFeedback:
    """One factor per position, by request count; counts not seen yet start from the nearest."""

    def __init__(
        self, gamma: int, prior_rows: float = 1.0, keep: float = 0.95, keep_idle: float = 0.9995
    ) -> None:
        """prior_rows: rows that pull towards what was believed before; keep: share of the sums
        that survives an observed step, so that a few requests are judged by what they did lately;
        keep_idle: any other step's."""
        self._new = _Sums(gamma, prior_rows, keep, keep_idle)
        self._seen: dict[int, _Sums] = {}

    def factors(self, num_requests: int) -> F32:
        """[gamma] in 0..1.5, never increasing, so that scaled survivals keep their order."""
        return self._at(num_requests).factors

    def correct(self, survival: F32) -> None:
        """Scale survivals [bs, g] in place, g <= gamma, and cut them to 1."""
        sums = self._at(len(survival))
        survival *= sums.factors[: survival.shape[1]]
        if sums.raises:
            np.minimum(survival, np.float32(1), out=survival)

    def observe(self, survival: F32, draft_lens: npt.ArrayLike, accepted: npt.ArrayLike) -> None:
        """One verified step. survival: [bs, g] as it was when the windows were chosen;
        draft_lens, accepted: [bs] drafts verified and committed."""
        crowd = crowd_of(len(survival))
        if crowd not in self._seen:
            self._seen[crowd] = self._at(len(survival)).started_anew()
        self._seen[crowd].observe(survival, np.asarray(draft_lens), np.asarray(accepted))

    def idle(self, num_requests: int) -> None:
        """A step that verified no draft."""
        self._at(num_requests).num_idle += 1

    def _at(self, num_requests: int) -> _Sums:
        if not self._seen:
            return self._new
        return self._seen[nearest_crowd(self._seen, num_requests)]


class _Sums:
    """Decayed sums per position, of one request count.

    What an observed step forgets is replaced by trust in the head, so that positions that are
    verified no more are tried again. Forgetting while nothing is verified lets a probe count
    again one day, and leaves the belief as it was: time alone is no reason to expect more.
    """

    def __init__(self, gamma: int, prior_rows: float, keep: float, keep_idle: float) -> None:
        self._predicted, self._observed = np.zeros(gamma), np.zeros(gamma)
        self._prior, self._keep, self._keep_idle = prior_rows, keep, keep_idle
        self._belief = np.ones(gamma)  # factors before anything was observed, or lately
        self.num_idle = 0  # steps since the last observed one
        self.factors: F32 = np.ones(gamma, dtype=np.float32)
        self.raises = False  # whether any factor exceeds 1

    def started_anew(self) -> _Sums:
        """Without observations, and believing what these have come to."""
        new = _Sums(len(self.factors), self._prior, self._keep, self._keep_idle)
        new.factors, new.raises = self.factors, self.raises
        new._belief = self.factors.astype(np.float64)
        return new

    def observe(self, survival: F32, draft_lens: I64, accepted: I64) -> None:
        lens, kept = draft_lens[:, None], accepted[:, None]
        gamma = survival.shape[1]
        steps = np.arange(gamma)
        awake = self._keep_idle**self.num_idle
        self.num_idle = 0
        self._belief += (1.0 - awake) * (self.factors - self._belief)
        self._belief += (1.0 - self._keep) * (1.0 - self._belief)
        self._predicted *= self._keep * awake
        self._observed *= self._keep * awake
        self._predicted[:gamma] += np.where(steps < lens, survival, 0.0).sum(0)
        self._observed[:gamma] += (steps < np.minimum(kept, lens)).sum(0)
        prior = self._prior * self._belief
        ratio = (self._observed + prior) / (self._predicted + self._prior)
        self.factors = np.minimum.accumulate(np.minimum(ratio, 1.5)).astype(np.float32)
        self.raises = bool(self.factors[0] > 1)
