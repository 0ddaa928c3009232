"""Cost tables as files, and whether a server may use them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from sglang_dspark.core.cost_schema import (
    at,
    dump_additive,
    dump_diagonal,
    dump_table,
    parse_table,
)
from sglang_dspark.core.cost_table import CostTableError, TierCost
from sglang_dspark.core.cost_verdict import examine, judge
from sglang_dspark.core.costs import StepCosts
from sglang_dspark.core.tiers import Tier
from tests.core.made_up import PROVENANCE, SERVER, linear_table
from tests.core.stock import stock_file


def with_provenance(**changes):
    return linear_table(dataclasses.replace(PROVENANCE, **changes))


def test_our_schema_survives_a_round_trip():
    table = dataclasses.replace(linear_table(), tiers=(TierCost(Tier(192, 32), (9.0, 10.0, 13.0)),))
    assert parse_table(dump_table(table)) == table
    bare = dataclasses.replace(table, no_draft=None)
    assert parse_table(dump_table(bare)) == bare


def test_a_table_without_provenance_is_not_written():
    with pytest.raises(CostTableError, match="provenance: missing"):
        dump_table(linear_table(provenance=None))


def test_a_fitting_table_is_used_without_a_word():
    verdict = judge(linear_table(), SERVER, named_by_user=False)
    assert verdict.level == "use" and verdict.reasons == ()


@pytest.mark.parametrize(
    ("changes", "level", "field"),
    [
        ({"device": "Another CPU"}, "refuse", "device"),
        ({"isa": "avx2"}, "refuse", "isa"),
        ({"threads": 16}, "refuse", "threads"),
        ({"dtype": "bfloat16"}, "refuse", "dtype"),
        ({"target": "t-2"}, "refuse", "target"),
        ({"draft": "d-2"}, "refuse", "draft"),
        ({"gamma": 5}, "refuse", "gamma"),
        ({"tp": 2}, "refuse", "tp"),
        ({"cores": 64}, "warn", "cores"),
        ({"engine": "sglang 0.5.22"}, "warn", "engine"),
        ({"attention_backend": "torch_native"}, "warn", "attention_backend"),
        ({"samples_per_point": 1}, "warn", "samples_per_point"),
        ({"residuals": (("draft", 0.3),)}, "warn", "residuals.draft"),
        ({"residuals": (("draft", float("nan")),)}, "warn", "residuals.draft"),
        ({"kind": "made-up"}, "refuse", "kind"),
    ],
)
def test_every_differing_field_has_its_verdict_and_reason(changes, level, field):
    verdict = judge(with_provenance(**changes), SERVER, named_by_user=False)
    assert verdict.level == level
    (reason,) = verdict.reasons
    assert reason.startswith(f"{field}: ")


def test_refusals_come_first_and_all_differences_are_told():
    table = with_provenance(engine="sglang 0.5.22", tp=2, device="Another CPU")
    verdict = judge(table, SERVER, named_by_user=True)
    assert verdict.level == "refuse"
    assert [r.partition(":")[0] for r in verdict.reasons] == ["device", "tp", "engine"]


def test_no_provenance_is_used_with_a_warning_only_when_the_user_names_the_file():
    table = linear_table(provenance=None)
    assert judge(table, SERVER, named_by_user=False).level == "refuse"
    verdict = judge(table, SERVER, named_by_user=True)
    assert verdict.level == "warn" and verdict.reasons[0].startswith("provenance: none")


def edited(change):
    raw = json.loads(dump_table(linear_table()))
    change(raw)
    return json.dumps(raw)


def flat(raw):
    raw["verify"]["ms"] = [[5.0] * 3] * 3


def single(raw):
    raw["verify"].update(tokens=[1], ms=[[5.0] * 3])


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        (dump_table(linear_table())[:200], "file", "truncated"),
        ("", "file", "truncated"),
        ("[1]", "file", "object was expected"),
        ("{}", "schema", "missing"),
        (edited(lambda r: r.update(version=1)), "schema", "version 1"),
        (edited(lambda r: r.update(schema="other")), "schema", "other"),
        (edited(lambda r: r.update(extra=1)), "extra", "unknown"),
        (edited(lambda r: r.pop("provenance")), "provenance", "missing"),
        (edited(lambda r: r["provenance"].pop("tp")), "provenance.tp", "missing"),
        (edited(lambda r: r["provenance"].update(tp="1")), "provenance.tp", "type"),
        (edited(lambda r: r["provenance"].update(kind="guess")), "provenance.kind", "guess"),
        (edited(lambda r: r["provenance"].update(colour=1)), "provenance.colour", "unknown"),
        (edited(lambda r: r.pop("no_draft")), "no_draft", "missing"),
        (edited(lambda r: r["verify"]["ms"].pop()), "verify", "2 rows of ms for 3"),
        (edited(lambda r: r["verify"]["tokens"].reverse()), "verify", "not sorted"),
        (edited(lambda r: r["draft"]["ms"][0].__setitem__(0, -1.0)), "draft", "-1.0 ms"),
        (edited(lambda r: r["rest"]["ms"][0].__setitem__(0, float("nan"))), "rest", "nan"),
        (edited(lambda r: r["rest"]["ms"][0].__setitem__(0, "1")), "rest.ms", "type"),
        (edited(lambda r: r["verify"]["tokens"].__setitem__(0, 0.5)), "verify.tokens", "type"),
        (
            edited(lambda r: r["tiers"].append({"tokens": 1, "slots": 2, "ms": [1]})),
            "tiers",
            "2 slo",
        ),
        (edited(lambda r: r["tiers"].append({"tokens": 1})), "tiers.slots", "missing"),
        (edited(flat), "verify", "flat"),
        (edited(single), "verify", "one size only"),
        ('{"sample_batch_tokens": [8, 4], "sample_steps_per_sec": [2, 1]}', "verify", "not sorted"),
        ('{"sample_batch_tokens": [4, 8], "sample_steps_per_sec": [2]}', "verify", "1 times for 2"),
        (
            '{"sample_batch_tokens": [4, 8], "sample_steps_per_sec": [2, 0]}',
            "sample_steps",
            "above 0",
        ),
        ('{"sample_batch_tokens": [1], "sample_steps_per_sec": [1.0]}', "verify", "one size only"),
        ('{"bias_seconds": 0.1, "bs_probes": [1]}', "theta_seconds", "missing"),
    ],
)
def test_a_bad_file_is_refused_with_the_field_and_the_reason(text, field, says):
    _, verdict = examine(text, SERVER, named_by_user=True)
    assert verdict.level == "refuse"
    assert any(r.startswith(field) and says in r for r in verdict.reasons), verdict.reasons


def test_one_context_or_no_plain_decode_is_a_warning():
    raw = json.loads(dump_table(linear_table()))
    raw["verify"].update(contexts=[0], ms=[[1.0], [2.0], [3.0]])
    raw["no_draft"] = None
    _, verdict = examine(json.dumps(raw), SERVER, named_by_user=False)
    assert verdict.level == "warn"
    assert [r.partition(":")[0] for r in verdict.reasons] == ["verify.contexts", "no_draft"]


def test_sglangs_diagonal_schema_goes_both_ways():
    sps = stock_file("dspark_sps")
    text = dump_diagonal(linear_table(), gamma=7, batch_sizes=(1, 4, 8))
    theirs = sps.SpsCostTable.from_json(text)
    assert 1e3 / theirs.lookup(32) == pytest.approx((2 + 4 / 8) + (4 + 32 / 4) + 0.5)
    costs = StepCosts(parse_table(theirs.to_json()), max_requests=8, gamma=7)
    assert not costs.prices_no_draft
    assert costs.drafting_ms(4, 0, 7)[28] == pytest.approx(1e3 / theirs.lookup(32))
    table, verdict = examine(text, SERVER, named_by_user=True)
    assert table is not None and verdict.level == "warn"
    assert examine(text, SERVER, named_by_user=False)[1].level == "refuse"


def test_sglangs_additive_schema_goes_both_ways():
    sps = stock_file("dspark_sps")
    table = linear_table()
    theirs = sps.SpsAdditiveCostTable.from_json(dump_additive(table))
    costs = StepCosts(parse_table(theirs.to_json()), max_requests=8, gamma=7)
    ours = StepCosts(table, max_requests=8, gamma=7)
    for num_requests in (1, 5, 8):
        step_ms = costs.drafting_ms(num_requests, 0, 7)
        budgets = np.arange(num_requests * 7 + 1)
        expected = [theirs.step_time(num_reqs=num_requests, budget=int(n)) * 1e3 for n in budgets]
        assert step_ms == pytest.approx(expected)
        assert step_ms == pytest.approx(ours.drafting_ms(num_requests, 0, 7))


def test_an_additive_table_with_negative_parts_keeps_its_sums():
    sps = stock_file("dspark_sps")
    theirs = sps.SpsAdditiveCostTable(0.01, [1, 4], [-0.002, 0.001], [1, 8], [-0.001, 0.004])
    costs = StepCosts(parse_table(theirs.to_json()), max_requests=4, gamma=1)
    for n in (1, 3, 4):
        expected = theirs.step_time(num_reqs=n, budget=n) * 1e3
        assert costs.drafting_ms(n, 0, 1)[n] == pytest.approx(expected)


def test_a_curve_is_read_between_its_points():
    curve = linear_table().draft.widest()
    assert [at(curve, n) for n in (1, 4, 8, 20, 100)] == pytest.approx([2.125, 2.5, 3, 4.5, 6])
