"""Draft KV that is written late ends up as if it had been written at once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from sglang_dspark.seam.draft_runner import MOST_KEPT_ROWS, DraftRunner

LAYERS, SLOTS = 2, 600


class Pool:
    def __init__(self):
        self.keys = torch.zeros(LAYERS, SLOTS)
        self.values = torch.zeros(LAYERS, SLOTS)

    def set_kv_buffer(self, layer, slots, keys, values):
        self.keys[layer, slots], self.values[layer, slots] = keys, values


@pytest.fixture
def runner():
    """The real bookkeeping on a pool of one number per slot; keys are features + position."""

    def context_kv(features, positions):
        keys = (features + positions).expand(LAYERS, -1)
        return keys, -keys

    made = object.__new__(DraftRunner)
    made.model = SimpleNamespace(
        backbone=SimpleNamespace(context_kv=context_kv), attention=list(range(LAYERS))
    )
    made._runner = SimpleNamespace(token_to_kv_pool=Pool())
    made._kept, made._kept_rows = [], 0
    return made


def rows(slots, feature):
    slots = torch.tensor(slots)
    return torch.full((len(slots),), float(feature)), slots * 10, slots


def stored(runner, slot):
    return runner._runner.token_to_kv_pool.keys[0, slot].item()


def test_nothing_is_written_until_someone_reads_or_writes(runner):
    runner.keep_context(*rows([1, 2], 5))
    assert stored(runner, 1) == 0
    runner.write_context(*rows([3], 7))
    assert [stored(runner, s) for s in (1, 2, 3)] == [15, 25, 37]
    assert torch.equal(
        runner._runner.token_to_kv_pool.values, -runner._runner.token_to_kv_pool.keys
    )


def test_the_later_row_of_a_slot_wins(runner):
    """A request ended, its slot went to another one: among kept rows, and over a later write."""
    runner.keep_context(*rows([4, 5], 1))
    runner.keep_context(*rows([5, 6], 2))
    runner.write_context(*rows([6], 3))
    assert [stored(runner, s) for s in (4, 5, 6)] == [41, 52, 63]


def test_few_rows_are_kept(runner):
    for step in range(MOST_KEPT_ROWS - 1):
        runner.keep_context(*rows([step], 1))
    assert stored(runner, 9) == 0
    runner.keep_context(*rows([MOST_KEPT_ROWS], 1))
    assert stored(runner, 9) == 91 and stored(runner, MOST_KEPT_ROWS) == 10 * MOST_KEPT_ROWS + 1
    assert runner._kept == [] and runner._kept_rows == 0
