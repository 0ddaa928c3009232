"""Survivals from confidences, and the STS file."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sglang_dspark.core.calibration import (
    Calibration,
    CalibrationError,
    dump_calibration,
    identity,
    load_calibration,
    parse_calibration,
)
from sglang_dspark.core.survival import confidences, survivals
from tests.core.stock import stock_file

ANY = st.floats(width=32) | st.sampled_from([0.0, -0.0, 1.0, np.nan, np.inf, -np.inf, 2.0, -1.0])


@given(arrays(np.float32, st.tuples(st.integers(1, 5), st.integers(1, 8)), elements=ANY))
def test_survivals_are_prefix_products_that_never_increase(confidence):
    before = confidence.copy()
    survival = survivals(confidence)
    assert survival.dtype == np.float32 and survival.shape == confidence.shape
    assert np.array_equal(confidence, before, equal_nan=True)
    assert np.all((survival >= 0) & (survival <= 1))
    assert np.all(np.diff(survival, axis=1) <= 0)
    usable = np.where(np.isfinite(confidence), np.clip(confidence, 0, 1), 0)
    assert np.array_equal(survival, np.multiply.accumulate(usable, axis=1, dtype=np.float32))


def test_what_is_not_a_number_counts_as_0():
    with np.errstate(invalid="raise", over="raise", divide="raise"):
        found = confidences([[np.nan, np.inf, -np.inf, 1e30, -1e30, 0.0]])
    assert found.tolist() == [[0.0, 0.0, 0.0, 1.0, 0.0, 0.5]]
    assert survivals([[0.5, np.nan, 1.0], [np.inf, 1.0, 1.0]]).tolist() == [[0.5, 0, 0], [0, 0, 0]]


def test_temperatures_belong_to_positions_and_a_limit_uses_the_first_ones():
    logits = np.array([[2.0, 2.0, 2.0]])
    full = confidences(logits, (1.0, 2.0, 4.0))
    assert full[0].tolist() == pytest.approx([1 / (1 + np.exp(-2 / t)) for t in (1, 2, 4)])
    assert np.array_equal(confidences(logits[:, :2], (1.0, 2.0, 4.0)), full[:, :2])
    assert np.array_equal(confidences(logits), confidences(logits, identity(3).temperatures))


def test_no_requests():
    assert survivals(np.zeros((0, 7))).shape == (0, 7)
    assert confidences(np.zeros((0, 7))).shape == (0, 7)


def test_an_sts_file_survives_a_round_trip(tmp_path):
    table = Calibration((1.5, 2.0), "gsm8k", 4000, (0.05, 0.08), (0.01, 0.02), {"command": "fit"})
    path = tmp_path / "sts.json"
    path.write_text(dump_calibration(table))
    assert load_calibration(path, 2) == table


def test_sglang_reads_our_file_and_we_read_theirs():
    sts = stock_file("dspark_sts")
    ours = Calibration((1.5, 2.0), "gsm8k", 10, (), (), {"command": "fit"})
    assert sts.DSparkStsCalibration.from_json(dump_calibration(ours)).temperatures == [1.5, 2.0]
    theirs = sts.DSparkStsCalibration(temperatures=[1.5, 2.0]).to_json()  # defaults left out
    assert parse_calibration(theirs, 2) == Calibration((1.5, 2.0))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"temperatures": [1.0, 2.0', "not JSON, perhaps truncated"),
        ("[1.0, 2.0]", "temperatures: missing"),
        ("{}", "temperatures: missing"),
        ('{"temperatures": []}', "temperatures: empty"),
        ('{"temperatures": [1.0, 0.0]}', "position 2 is 0.0"),
        ('{"temperatures": [1.0, -1.0]}', "position 2 is -1.0"),
        ('{"temperatures": [NaN, 1.0]}', "position 1 is nan"),
        ('{"temperatures": [1.0, Infinity]}', "position 2 is inf"),
        ('{"temperatures": [1.0, "2"]}', "not a list of numbers"),
        ('{"temperatures": 1.0}', "not a list"),
        ('{"temperatures": [1.0, 1.0, 1.0]}', "fitted for gamma 3, the draft has gamma 2"),
        ('{"temperatures": [1.0, 1.0], "ece_after": [0.1]}', "ece_after: 1 values for 2"),
        ('{"temperatures": [1.0, 1.0], "ece_after": [0.1, 7]}', "not within 0..1"),
        ('{"temperatures": [1.0, 1.0], "num_samples": -1}', "num_samples: -1"),
        ('{"temperatures": [1.0, 1.0], "dataset": 3}', "dataset: 3 is not a str"),
    ],
)
def test_a_bad_sts_file_is_refused_with_the_reason(text, says, tmp_path):
    path = tmp_path / "sts.json"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=r"sts\.json: .*") as error:
        load_calibration(path, 2)
    assert says in str(error.value)


def test_a_missing_sts_file_is_refused(tmp_path):
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_calibration(tmp_path / "none.json", 2)
    assert json.loads(dump_calibration(identity(2)))["temperatures"] == [1.0, 1.0]
