"""Run-time control: what is accepted, what is refused, and that a refusal changes nothing."""

from __future__ import annotations

import pytest

from sglang_dspark.core.plan import Pin
from sglang_dspark.engine.steering import Prepared, Steering, SteeringError
from sglang_dspark.settings import NoDraft

FULL = Prepared(
    gamma=7,
    has_confidence=True,
    prices_no_draft=True,
    modes=frozenset({"static", "compact", "cap-accept"}),
)
NO_HEAD = Prepared(
    gamma=7, has_confidence=False, prices_no_draft=False, modes=frozenset({"static"})
)
START = Steering("static", 7, NoDraft(mode="off"))


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
