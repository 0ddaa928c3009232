"""In which verify mode a server starts, and the reason that its log gives."""

from __future__ import annotations

import pytest

from sglang_dspark.engine.modes import VARIABLE, starting_mode

ABLE = {"has_confidence": True, "captures_graphs": False, "tables": True}


def test_compact_where_a_head_and_a_table_are_there():
    assert starting_mode({}, **ABLE)[0] == "compact"


@pytest.mark.parametrize(
    ("lacking", "reason"),
    [
        ({"has_confidence": False}, "no confidence head"),
        ({"captures_graphs": True}, "--disable-cuda-graph"),
        ({"tables": False}, "cost_table = off"),
    ],
)
def test_static_and_the_reason_where_something_is_lacking(lacking, reason):
    mode, why = starting_mode({}, **ABLE | lacking)
    assert mode == "static" and reason in why


@pytest.mark.parametrize("named", ["static", "compact", "cap-accept"])
def test_the_variable_wins(named):
    assert starting_mode({VARIABLE: named}, **ABLE | {"tables": False}) == (
        named,
        f"as {VARIABLE} says",
    )
