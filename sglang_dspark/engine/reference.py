"""A fixed piece of arithmetic, timed beside the steps: how fast the machine is just now.

A machine that others share, or that is warm, runs everything faster for some seconds and slower
for others. Two steps that were timed apart can be compared after each is divided by the time of
the same product at its side.
"""

from __future__ import annotations

import time

import torch
from torch.nn.functional import linear

ROWS, INPUTS, OUTPUTS = 32, 256, 1024  # about 0.15 ms on two CPU cores, like one layer of a step
TIMED = 3


class ReferenceWork:
    """One matrix product on the CPU, always of the same numbers."""

    def __init__(self) -> None:
        numbers = torch.Generator(device="cpu").manual_seed(0)
        made = {"generator": numbers, "device": "cpu", "dtype": torch.float32}
        self._x = torch.randn(ROWS, INPUTS, **made)
        self._weight = torch.randn(OUTPUTS, INPUTS, **made)

    def time_ms(self) -> float:
        """Median of a few runs; the one before them fetches the numbers into the cache."""
        linear(self._x, self._weight)
        return sorted(self._time_once_ms() for _ in range(TIMED))[TIMED // 2]

    def _time_once_ms(self) -> float:
        begun = time.perf_counter()
        linear(self._x, self._weight)
        return (time.perf_counter() - begun) * 1e3
