"""Run-time control: what is accepted, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sglang_dspark.core.calibration import Calibration, dump_calibration
from sglang_dspark.core.cost_schema import dump_table
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.plan import Pin
from sglang_dspark.engine.shelf import PricedTable, Shelf
from sglang_dspark.engine.steering import Prepared, Steering, SteeringError
from sglang_dspark.engine.tables import LoadedTable
from sglang_dspark.settings import NoDraft
from tests.engine.test_tables import SERVER, table


def price(found: LoadedTable) -> PricedTable:
    costs = StepCosts(found.table, max_requests=8, gamma=7)
    return PricedTable(found.name, found.verdict, found.reasons, costs)


SHELF = Shelf(SERVER, price)
FULL = Prepared(
    gamma=7,
    has_confidence=True,
    modes=frozenset({"static", "compact", "cap-accept"}),
    shelf=SHELF,
    table=price(LoadedTable("start.json", table(), "use", ())),
)
NO_HEAD = Prepared(gamma=7, has_confidence=False, modes=frozenset({"static"}), shelf=SHELF)
START = Steering("static", 7, NoDraft(mode="off"), table=FULL.table)


def test_keys_of_one_request_take_effect_together():
    new = START.changed(
        {"dspark_verify_mode": "compact", "dspark_gamma_limit": 3, "dspark_budget": 5}, FULL
    )
    assert (new.mode, new.gamma_limit, new.pin) == ("compact", 3, Pin(drafts=5))


def test_a_pin_is_given_in_drafts_or_as_a_fraction_and_can_be_taken_back():
    compact = START.changed({"dspark_verify_mode": "compact"}, FULL)
    assert compact.changed({"dspark_budget_fraction": 0.25}, FULL).pin == Pin(fraction=0.25)
    pinned = compact.changed({"dspark_budget": 0}, FULL)
    assert pinned.pin == Pin(drafts=0)
    assert pinned.changed({"dspark_budget": None}, FULL).pin is None


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"dspark_verify_mode": "banana"}, "static, cap-accept, compact"),
        ({"dspark_verify_mode": 1}, "expected one of"),
        ({"dspark_gamma_limit": 0}, "1 to 7"),
        ({"dspark_gamma_limit": 8}, "1 to 7"),
        ({"dspark_gamma_limit": 2.5}, "1 to 7"),
        ({"dspark_gamma_limit": True}, "1 to 7"),
        ({"dspark_budget": 3}, "dspark_verify_mode to compact"),
        ({"dspark_verify_mode": "compact", "dspark_budget": -1}, "0 or more"),
        ({"dspark_verify_mode": "compact", "dspark_budget_fraction": 1.5}, "0 to 1"),
        ({"dspark_no_draft": "maybe"}, "off, on, auto, alternate"),
        ({"dspark_no_draft": "auto"}, "compact or cap-accept"),
        ({"dspark_typo": 1}, "dspark_verify_mode"),
    ],
)
def test_a_wrong_value_is_refused_by_name(request_, named):
    with pytest.raises(SteeringError, match=named):
        START.changed(request_, FULL)


def test_algorithm_1_always_drafts():
    compact = START.changed({"dspark_verify_mode": "compact"}, FULL)
    with pytest.raises(SteeringError, match="algorithm-1 always drafts"):
        compact.changed({"dspark_no_draft": "auto"}, replace(FULL, lagged=False))


def test_a_refused_request_leaves_the_choice_as_it_was():
    before = START.changed({"dspark_verify_mode": "compact"}, FULL)
    with pytest.raises(SteeringError):
        before.changed({"dspark_gamma_limit": 3, "dspark_budget": -1}, FULL)
    assert before == START.changed({"dspark_verify_mode": "compact"}, FULL)


def test_without_a_confidence_head_only_static_is_there():
    with pytest.raises(SteeringError, match="no confidence head"):
        START.changed({"dspark_verify_mode": "compact"}, NO_HEAD)


def test_going_back_to_static_drops_what_static_cannot_do():
    auto = START.changed({"dspark_verify_mode": "compact", "dspark_no_draft": "auto"}, FULL)
    pinned = auto.changed({"dspark_budget": 3}, FULL)
    static = pinned.changed({"dspark_verify_mode": "static"}, FULL)
    assert static.pin is None and static.no_draft.mode == "off"


@pytest.fixture
def shelved(tmp_path):
    """A server that may be given other tables and calibrations by name."""
    (tmp_path / "dear.json").write_text(dump_table(table()))
    (tmp_path / "foreign.json").write_text(dump_table(table(replace(SERVER, target="other"))))
    (tmp_path / "sts.json").write_text(dump_calibration(Calibration((1.5,) * 7)))
    (tmp_path / "short.json").write_text(dump_calibration(Calibration((1.5,) * 3)))
    shelf = Shelf(SERVER, price, tables=tmp_path, calibrations=tmp_path)
    return replace(FULL, shelf=shelf)


def test_a_table_is_named_switched_off_and_taken_back(shelved):
    auto = START.changed({"dspark_verify_mode": "compact", "dspark_no_draft": "auto"}, shelved)
    assert auto.changed({"dspark_cost_table": "dear"}, shelved).table_name == "dear.json"
    off = auto.changed({"dspark_cost_table": "off"}, shelved)
    assert (off.table_name, off.no_draft.mode) == ("verify-all", "off")
    assert off.changed({"dspark_cost_table": None}, shelved).table == FULL.table


def test_a_calibration_is_named_switched_off_and_taken_back(shelved):
    sts = START.changed({"dspark_sts": "sts"}, shelved)
    assert (sts.calibration.temperatures[0], sts.calibration_name) == (1.5, "sts")
    assert sts.changed({"dspark_sts": "off"}, shelved).calibration.temperatures == (1.0,) * 7
    assert sts.changed({"dspark_sts": ""}, shelved).calibration == FULL.calibration


@pytest.mark.parametrize(
    ("request_", "named"),
    [
        ({"dspark_cost_table": "foreign"}, "target: table has 'other'"),
        ({"dspark_cost_table": "absent"}, "dear"),
        ({"dspark_cost_table": "../dear"}, "expected one of"),
        ({"dspark_cost_table": 3}, "expected one of"),
        ({"dspark_sts": "short"}, "fitted for gamma 3"),
        ({"dspark_sts": "/etc/passwd"}, "expected one of"),
    ],
)
def test_a_file_that_is_not_there_or_does_not_fit_is_refused(shelved, request_, named):
    with pytest.raises(SteeringError, match=named):
        START.changed(request_, shelved)


def test_without_folders_named_at_start_no_file_can_be_named():
    for key in ("dspark_cost_table", "dspark_sts"):
        with pytest.raises(SteeringError, match="SGLANG_DSPARK_CONFIG"):
            START.changed({key: "any"}, FULL)
