"""Temperature 0: the tokens of a server without speculation, and of nobody else."""

from __future__ import annotations

import numpy as np
import pytest

from tests.draft.reference import load_target
from tests.server.conftest import Serve
from tests.server.grid import (
    BATCHES,
    COVERING,
    END,
    Control,
    Workload,
    compare_with,
    top_two_gap,
)
from tests.server.law import next_logits
from tests.server.servers import Pairs
from tests.server.whole_grid import main


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.serves(name)) for name in COVERING]
)
def test_tokens_equal_those_without_speculation(
    name: str, batch: int, serve: Serve, workload: Workload, control: Control
) -> None:
    result = compare_with(control, workload, serve(name).client, batch)
    print(result)
    assert result.identical, str(result)
    assert result.prompts == len(workload.prompts)


@pytest.mark.serves("control", "text-7")
def test_tokens_equal_up_to_the_context_end(serve: Serve, pairs: Pairs) -> None:
    workload = Workload(pairs.get("text"), END)
    control = Control(lambda: serve("control").client, workload)
    result = compare_with(control, workload, serve("text-7").client, batch=1)
    assert result.identical, str(result)
    assert len(control.answers[-1]) == END.tail - 2  # where SGLang stops


@pytest.mark.serves("control")
def test_the_gap_asked_of_the_control_is_the_one_of_its_logits(
    serve: Serve, pairs: Pairs, workload: Workload
) -> None:
    """No flip has ever asked for it, so it is asked for here."""
    target = load_target(pairs.get("text").target)
    for ids in workload.prompts[:4]:
        best, second = np.sort(next_logits(target, [ids])[0])[:-3:-1]
        assert top_two_gap(serve("control").client, ids) == pytest.approx(best - second, abs=1e-4)


@pytest.mark.full
@pytest.mark.timeout(12 * 3600)
def test_the_whole_grid() -> None:
    assert main(["--out", "out/grid.json"]) == 0
