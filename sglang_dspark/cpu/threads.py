"""How many threads torch uses, where the user has not said."""

from __future__ import annotations

import os

import psutil
import torch


def default_threads() -> int:
    """Physical cores this process may run on; hyper-threads share the units a matmul needs."""
    logical = len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    return max(1, min(logical, physical))


def set_default_threads() -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(default_threads())
