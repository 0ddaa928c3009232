"""How many threads torch uses, where the user has not said."""

from __future__ import annotations

import os

import psutil
import torch


def default_threads() -> int:
    """One core less than there are: SGLang's HTTP, tokenizer and detokenizer processes need one.

    With a thread on every core, each parallel region waits for whichever thread was pushed off
    its core, in scheduler slices of some ms (measured on 2 busy cores: steps of 13 ms became 150).
    Hyper-threads are not counted, they share the units a matmul needs.
    """
    logical = len(psutil.Process().cpu_affinity() or ()) or os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    return max(1, min(logical, physical) - 1)


def set_default_threads() -> None:
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(default_threads())
