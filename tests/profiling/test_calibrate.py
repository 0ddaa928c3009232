import json

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from sglang_dspark.cli.calibrate import calibrate as command
from sglang_dspark.core.calibration import load_calibration
from sglang_dspark.core.sts import calibration_error, fit_temperatures
from sglang_dspark.core.survival import confidences, survivals
from sglang_dspark.profiling.calibrate.blocks import blocks_of, split_halves
from sglang_dspark.profiling.calibrate.reason import explain
from sglang_dspark.profiling.calibrate.report import TooFewRounds, as_calibration, calibrate
from sglang_dspark.profiling.calibrate.scores import (
    auc,
    best_monotone,
    brier,
    perfect_error,
    reliability_curve,
)
from sglang_dspark.profiling.traces import TraceError, read_named_traces
from tests.profiling.made_traces import header, step, true_logits, write, write_calibration_trace

TRUE = (1.5, 0.8, 2.0)


def bits(*values):
    return np.array(values, dtype=bool)


def test_calibration_error_by_hand():
    survival = np.array([0.1, 0.15, 0.9, 1.0])  # two bins of two: 0.05..0.5 and 0.5..1
    survived = bits(0, 1, 1, 0)
    assert calibration_error(survival, survived, bins=2) == pytest.approx((0.75 + 0.9) / 4)
    assert np.isnan(calibration_error(survival[:0], survived[:0]))


def test_brier_by_hand():
    assert brier(np.array([0.5, 1.0]), bits(0, 1)) == pytest.approx(0.125)


def test_auc_counts_pairs_with_ties_half():
    rng = np.random.default_rng(0)
    survival, survived = rng.integers(0, 6, 60) / 6, rng.random(60) < 0.4
    wins = [
        (a > b) + 0.5 * (a == b) for a in survival[survived] for b in survival[~survived]
    ]  # every pair, literally
    assert auc(survival, survived) == pytest.approx(np.mean(wins))
    assert np.isnan(auc(survival, np.ones(60, dtype=bool)))


def test_a_reliability_curve_names_what_is_in_its_bins():
    curve = reliability_curve(np.array([0.1, 0.3, 0.9]), bits(0, 1, 1), bins=2)
    assert [b[2] for b in curve] == [2, 1]
    assert curve[0][:2] == pytest.approx((0.2, 0.5))


def test_what_chance_shows_falls_with_the_sample():
    """paper.md: about 2.7 % at 2,000 pairs and 0.9 % at 20,000."""
    rng = np.random.default_rng(0)
    small, _ = perfect_error(rng.random(2_000))
    large, bound = perfect_error(rng.random(20_000))
    assert small == pytest.approx(0.027, abs=0.006)
    assert large == pytest.approx(0.009, abs=0.002)
    assert large < bound < 1.6 * large


def test_the_best_rising_map_undoes_any_rising_distortion():
    rng = np.random.default_rng(1)
    truth = rng.random(40_000)
    survived = rng.random(40_000) < truth
    shown = truth**3 * 0.5  # no temperature undoes this
    mapped = best_monotone(shown[:20_000], survived[:20_000], shown[20_000:])
    assert calibration_error(shown[20_000:], survived[20_000:]) > 0.2
    assert calibration_error(mapped, survived[20_000:]) < 0.02
    assert (np.diff(mapped[np.argsort(shown[20_000:])]) >= 0).all()


def test_sts_recovers_the_temperatures():
    logits, kept = true_logits(np.random.default_rng(2), 40_000, 3)
    shown = logits * np.array(TRUE)
    found = fit_temperatures(shown, kept)
    assert found == pytest.approx(TRUE, rel=0.15)
    after = survivals(confidences(shown, found))
    errors = [calibration_error(after[:, k], kept > k) for k in range(3)]
    assert max(errors) < 0.01


def test_a_perfect_head_keeps_temperatures_about_1():
    logits, kept = true_logits(np.random.default_rng(3), 40_000, 3)
    assert fit_temperatures(logits, kept) == pytest.approx((1.0, 1.0, 1.0), rel=0.12)


def test_equally_good_temperatures_give_the_one_nearest_to_1():
    # Confidence 1/2 whatever the temperature.
    assert fit_temperatures(np.zeros((10, 1)), [1] * 5 + [0] * 5) == (1.0,)


def test_a_position_that_no_block_reaches_keeps_temperature_1():
    logits = np.random.default_rng(0).normal(-3, 1, (2_000, 4))
    kept = np.zeros(2_000, dtype=int)
    assert fit_temperatures(logits, kept)[-1] == 1.0


def traces_of(tmp_path, rounds=3_000):
    for name, seed in (("code", 0), ("text", 1)):
        write_calibration_trace(tmp_path / f"{name}.jsonl", rounds, TRUE, seed=seed)
    return read_named_traces([str(tmp_path / "code.jsonl"), str(tmp_path / "text.jsonl")])


def test_halves_share_no_request_and_are_equal_in_every_domain(tmp_path):
    blocks = blocks_of(traces_of(tmp_path, rounds=1_020))
    fit, held_out = split_halves(blocks, seed=1)
    assert not set(fit.request) & set(held_out.request)
    assert len(fit) + len(held_out) == len(blocks) == 2_040
    for name in blocks.domains:
        difference = len(held_out.of_domain(name)) - len(fit.of_domain(name))
        assert abs(difference) <= 50
    assert (split_halves(blocks, seed=1)[1].logits == held_out.logits).all()
    assert set(split_halves(blocks, seed=2)[1].request) != set(held_out.request)


def test_a_report_says_what_the_fit_is_worth(tmp_path):
    traces = traces_of(tmp_path)
    report = calibrate({"code": traces["code"]}, {"text": traces["text"]}, min_rounds=1_000)
    assert [(g.name, g.kind) for g in report.groups] == [
        ("pooled", "pooled"),
        ("text", "evaluated"),
    ]
    first = report.groups[0].positions[0]
    assert first.before.ece > 0.04 > first.after.ece
    assert first.before.auc == pytest.approx(first.after.auc)  # one position's order is kept
    assert first.after.brier < first.before.brier
    assert report.held_out_rounds == report.groups[0].rounds == 1_500
    assert any("20,000" in note for note in report.notes)
    saved = as_calibration(report)
    assert saved.num_samples == 1_500
    assert saved.dataset == "code"


def test_too_few_rounds_are_refused_with_the_number(tmp_path):
    with pytest.raises(TooFewRounds, match=r"3,000 held-out .* 4,000 are needed: record 8,000"):
        calibrate(traces_of(tmp_path), {}, min_rounds=4_000)


@pytest.mark.parametrize("change", [{"ceiling": None}, {"confidence_logits": None}])
def test_blocks_that_were_not_judged_as_a_whole_are_refused(tmp_path, change):
    write(tmp_path / "code.jsonl", [header(3), step(0, [1], [2], 3, **change)])
    with pytest.raises(TraceError, match="cap-accept"):
        blocks_of(read_named_traces([str(tmp_path / "code.jsonl")]))


def test_each_kind_of_failure_has_its_sentence():
    survival = np.linspace(0.05, 0.95, 1_000)
    shifted = np.random.default_rng(0).random(1_000) < survival * 0.7
    bent = survival > 0.5
    assert "more rounds" in explain(1, survival, bent, 0.03, 0.02, 0.031)
    assert "two halves differ" in explain(1, survival, bent, 0.03, 0.029, 0.01)
    assert "a shift" in explain(1, survival, shifted, 0.15, 0.01, 0.01)
    assert "sign changes" in explain(1, survival, bent, 0.2, 0.01, 0.01)


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(command)


def run(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_the_command_writes_what_a_server_loads(tmp_path):
    traces_of(tmp_path, rounds=1_000)
    files = (tmp_path / "code.jsonl", tmp_path / "text.jsonl")
    out = tmp_path / "out"
    done = run(*files, "--out", out, "--min-rounds", 500, "--json")
    assert done.exit_code == 0, done.stderr
    record = json.loads(done.stdout)
    assert load_calibration(out / "sts.json", gamma=3).temperatures == tuple(record["temperatures"])
    assert json.loads((out / "report.json").read_text()) == record
    assert (out / "reliability.png").read_bytes().startswith(b"\x89PNG")
    again = run(*files, "--out", out, "--min-rounds", 500)
    assert again.exit_code == 2
    assert "--force" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give traces recorded in cap-accept, or --record"),
        (("x.jsonl", "--record"), "not both"),
        (("x.jsonl", "--concurrency", "2"), "--concurrency is for recording: add --record"),
        (("--record", "--url", "http://x"), "--url and --trace-directory go together"),
        (
            ("--record", "--url", "u", "--trace-directory", "d", "--draft", "."),
            "--draft has no effect",
        ),
        (("none.jsonl",), "cannot be read"),
    ],
)
def test_wrong_use_exits_2_and_says_what_to_do(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in " ".join(done.stderr.split())
