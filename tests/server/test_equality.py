"""Temperature 0: the tokens of a server without speculation, and of nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.grid import (
    BATCHES,
    COVERING,
    FULL,
    Control,
    Record,
    Workload,
    compare_with,
    full_grid,
    run,
)
from tests.server.servers import Pairs, bundled_pair


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.serves("control", name)) for name in COVERING]
)
def test_tokens_equal_those_without_speculation(
    name: str, batch: int, serve: Serve, workload: Workload, control: Control
) -> None:
    result = compare_with(control, workload, serve(name).client, batch)
    print(result)
    assert result.identical, str(result)
    assert result.tokens == sum(map(len, control.answers))


@pytest.mark.full
@pytest.mark.timeout(12 * 3600)
def test_the_whole_grid(tmp_path: Path, pairs: Pairs) -> None:
    pair = pairs.get("text")
    assert pair == bundled_pair(), "the whole grid is for the trained pair"
    record = Record(Path("out/grid.json"), {"pair": "examples/tiny"})
    assert run(dict(full_grid()), FULL, pair, record, tmp_path)
