"""Temperature 0: the tokens of a server without speculation, and of nobody else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.conftest import Serve
from tests.server.grid import BATCHES, COVERING, FULL, SMALL, Control, Record, Workload
from tests.server.grid import compare_with, full_grid, run
from tests.server.servers import Pairs, bundled_pair


@pytest.fixture(scope="session")
def workload(pairs: Pairs) -> Workload:
    return Workload(pairs.get("text"), SMALL)


@pytest.fixture(scope="session")
def controls() -> dict[str, Control]:
    """One control for the session: its answers are computed once."""
    return {}


def control_of(controls: dict[str, Control], serve: Serve, workload: Workload) -> Control:
    client = serve("control").client
    if "it" not in controls:
        controls["it"] = Control(client, workload)
    controls["it"]._client = client  # it may have been restarted
    return controls["it"]


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.serves("control", name)) for name in COVERING]
)
def test_tokens_equal_those_without_speculation(
    name: str, batch: int, serve: Serve, workload: Workload, controls: dict[str, Control]
) -> None:
    control = control_of(controls, serve, workload)
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
