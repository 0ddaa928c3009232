"""Confidences of earlier steps, for the budget of a coming one (paper.md, "Lagged budget").

A ring over request slots, one layer per step. A row is lent only if it was published for exactly
`step - lag` by the request that holds the slot now: a slot that changed hands, a flush, a
retraction and a step without drafts all lend nothing. What is missing is filled with a learned
mean, never with 1, which would verify too much after every admission.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.running import SurvivalPrior, TypicalSurvival

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_NOBODY = -1  # a generation that no request has; real ones are >= 0
_NEVER = -1


@dataclass(frozen=True, slots=True)
class Lagged:
    """What the budget of a step may know."""

    survival: F32  # [bs, g]
    known: npt.NDArray[np.bool_]  # [bs] own confidences of step - lag; elsewhere a learned mean


class ConfidenceRelay:
    """lag 1: step t reads what step t - 1 published; lag 2 (overlap): what step t - 2 did.

    Steps are decode steps, numbered by the caller, rising; a step that drafts nothing is simply
    not published. Slots and generations are SGLang's request-pool index and its generation.
    """

    def __init__(self, num_slots: int, gamma: int, lag: int) -> None:
        if lag < 1:
            raise ValueError(f"lag {lag}: a budget must not see its own step (paper.md)")
        self.lag, self.gamma = lag, gamma
        self._depth = lag + 1
        self._survival = np.zeros((self._depth, num_slots, gamma), dtype=np.float32)
        self._generation = np.full((self._depth, num_slots), _NOBODY, dtype=np.int64)
        self._step = np.full(self._depth, _NEVER, dtype=np.int64)  # that each layer belongs to
        self._met = np.full(num_slots, _NOBODY, dtype=np.int64)  # generation that last drafted
        self._flushed = _NEVER  # steps up to this one are forgotten
        self.prior = SurvivalPrior(gamma)
        self.typical = TypicalSurvival(gamma)

    def publish(self, step: int, slots: I64, generations: I64, survival: F32) -> None:
        """Store what `step` computed. slots, generations: [bs] *as that step was launched*;
        survival: [bs, g], g <= gamma (a run-time gamma limit leaves the rest at 0).

        May be called late, as long as it is before step + lag is planned; steps in order.
        """
        if step <= self._flushed:
            return
        gamma = survival.shape[1]
        layer = step % self._depth
        self._step[layer] = step
        self._generation[layer].fill(_NOBODY)
        self._generation[layer, slots] = generations
        if gamma < self.gamma:
            self._survival[layer, slots, gamma:] = 0.0
            self._survival[layer, slots, :gamma] = survival
        else:
            self._survival[layer, slots] = survival
        new = self._met[slots] != generations
        if new.any():
            self.prior.add(survival[new])
            self._met[slots] = generations
        self.typical.add(step, survival)

    def read(self, step: int, slots: I64, generations: I64, gamma: int) -> Lagged:
        """What step `step` may know about its requests, [bs, gamma].

        slots, generations: [bs] of the coming batch.
        """
        layer = (step - self.lag) % self._depth
        if self._step[layer] != step - self.lag:
            known = np.zeros(len(slots), dtype=np.bool_)
            return Lagged(self._learned(slots, generations)[:, :gamma], known)
        known = self._generation[layer].take(slots) == generations
        survival = self._survival[layer].take(slots, axis=0)[:, :gamma]
        if not known.all():
            strange = ~known
            learned = self._learned(slots[strange], generations[strange])
            survival[strange] = learned[:, :gamma]
        return Lagged(survival, known)

    def flush(self, step: int) -> None:
        """Forget every confidence up to and including `step`, also one still to be published.

        After a flush of SGLang's caches generations may start anew. What was learned stays.
        """
        self._flushed = step
        self._step.fill(_NEVER)
        self._generation.fill(_NOBODY)
        self._met.fill(_NOBODY)

    def _learned(self, slots: I64, generations: I64) -> F32:
        """[n, gamma]: new requests look like new ones did, the others like the batch lately."""
        new = self._met[slots] != generations
        curves = np.where(new[:, None], self.prior.curve, self.typical.curve)
        return curves.astype(np.float32)
