"""Confidences of earlier steps, for the budget of a coming one (paper.md, "Lagged budget").

A ring over request slots, one layer per step. A row is lent only if it was published for exactly
`step - lag` by the request that holds the slot now: a slot that changed hands, a flush, a
retraction and a step without drafts all lend nothing. What is missing is filled with a learned
mean, never with 1, which would verify too much after every admission.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sglang_dspark.core.running import LEAST, SurvivalPrior, TypicalSurvival

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]

_NOBODY = -1  # a generation that no request has; real ones are >= 0


class Lagged(NamedTuple):
    """What the budget of a step may know."""

    survival: F32  # [bs, g]
    known: npt.NDArray[np.bool_]  # [bs] own confidences of step - lag; elsewhere a learned mean
    informed: bool  # any of them known


class _Published(NamedTuple):
    """One layer of the ring: what one step computed, for whom."""

    step: int
    who: tuple[bytes, bytes]
    survival: F32  # [bs, g]

    def find(
        self, slots: I64, generations: I64, num_slots: int
    ) -> tuple[npt.NDArray[np.bool_], I64]:
        """Which of these requests were in the step [bs], and in which row of it [bs]."""
        its_slots, its_generations = (np.frombuffer(b, dtype=np.int64) for b in self.who)
        row_of_slot = np.full(num_slots, -1, dtype=np.int64)
        row_of_slot[its_slots] = np.arange(len(its_slots))
        rows = row_of_slot.take(slots)
        return (rows >= 0) & (its_generations.take(rows) == generations), rows


def _identify(slots: I64, generations: I64) -> tuple[bytes, bytes]:
    """The batch as bytes: most steps keep it, and bytes compare faster than arrays by far."""
    return np.asarray(slots, np.int64).tobytes(), np.asarray(generations, np.int64).tobytes()


class ConfidenceRelay:
    """lag 1: step t reads what step t - 1 published; lag 2 (overlap): what step t - 2 did.

    Steps are decode steps, numbered by the caller, rising; a step that drafts nothing is simply
    not published. Slots and generations are SGLang's request-pool index and its generation.
    """

    def __init__(self, num_slots: int, gamma: int, lag: int) -> None:
        if lag < 1:
            raise ValueError(f"lag {lag}: a budget must not see its own step (paper.md)")
        self.lag, self.gamma = lag, gamma
        self._ring: list[_Published | None] = [None] * (lag + 1)
        self._met = np.full(num_slots, _NOBODY, dtype=np.int64)  # generation that last drafted
        self._last: tuple[bytes, bytes] | None = None  # batch that published last
        self._flushed = -1  # steps up to this one are forgotten
        self.prior = SurvivalPrior(gamma)
        self.typical = TypicalSurvival(gamma)

    def publish(self, step: int, slots: I64, generations: I64, survival: F32) -> None:
        """Store what `step` computed. slots, generations: [bs] *as that step was launched*;
        survival: [bs, g], g <= gamma; of a step that proposed fewer, the rest is foretold.

        May be called late, as long as it is before step + lag is planned; steps in order. The
        arrays are copied.
        """
        if step <= self._flushed or not len(slots):
            return
        who, survival = _identify(slots, generations), survival.copy(order="K")
        self._ring[step % len(self._ring)] = _Published(step, who, survival)
        if who != self._last:
            self._meet(slots, generations, survival)
            self._last = who
        self.typical.add(step, survival)

    def read(self, step: int, slots: I64, generations: I64, gamma: int) -> Lagged:
        """What step `step` may know about its requests, [bs, gamma]; a new array.

        slots, generations: [bs] of the coming batch.
        """
        layer = self._ring[(step - self.lag) % len(self._ring)]
        if layer is None or layer.step != step - self.lag:
            nobody = np.zeros(len(slots), dtype=np.bool_)
            return Lagged(self._learned(slots, generations)[:, :gamma], nobody, False)
        if layer.who == _identify(slots, generations):
            everybody = np.ones(len(slots), dtype=np.bool_)
            return Lagged(self._widened(layer.survival, gamma), everybody, True)
        known, rows = layer.find(slots, generations, len(self._met))
        survival = self._learned(slots, generations)[:, :gamma]
        survival[known] = self._widened(layer.survival, gamma)[rows[known]]
        return Lagged(survival, known, bool(known.any()))

    def flush(self, step: int) -> None:
        """Forget every confidence up to and including `step`, also one still to be published.

        After a flush of SGLang's caches generations may start anew. What was learned stays.
        """
        self._flushed = step
        self._ring = [None] * len(self._ring)
        self._met.fill(_NOBODY)
        self._last = None

    def _meet(self, slots: I64, generations: I64, survival: F32) -> None:
        """Learn from the first blocks of new requests."""
        new = self._met.take(slots) != generations
        self.prior.add(survival[new])
        self._met[slots] = generations

    def _learned(self, slots: I64, generations: I64) -> F32:
        """[bs, gamma]: new requests look like new ones did, the others like the batch lately."""
        new = self._met.take(slots) != generations
        curves = np.where(new[:, None], self.prior.curve, self.typical.curve)
        return curves.astype(np.float32)

    def _widened(self, survival: F32, gamma: int) -> F32:
        """A copy [bs, gamma]: cut, or continued as blocks usually go."""
        g = survival.shape[1]
        if g >= gamma:
            return survival[:, :gamma].copy(order="K")
        wide = np.empty((len(survival), gamma), dtype=np.float32)
        wide[:, :g] = survival
        curve = self.typical.curve
        wide[:, g:] = survival[:, g - 1 : g] * (curve[g:gamma] / max(curve[g - 1], LEAST))
        return wide
