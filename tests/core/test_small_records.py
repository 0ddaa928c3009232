"""Accept length, packed rows and filters: the plain reference forms."""

import math

import numpy as np
import pytest

from sglang_dspark.core.accept_length import AcceptCounts, count_step
from sglang_dspark.core.filters import filter_flashinfer, filter_pytorch
from sglang_dspark.core.layout import row_layout


def test_accept_length_counts_empty_windows_and_adds_up():
    first = count_step([7, 0, 3], [4, 0, 3])
    assert first == AcceptCounts(pairs=3, accepted=7, verified=10, uncapped=7)
    assert first.accept_length == pytest.approx(1 + 7 / 3)
    assert first.accept_rate == pytest.approx(0.7)
    both = first + count_step([2], [2], uncapped=[5])  # cap-accept: committed 2 of 5
    assert both.accept_length == pytest.approx(1 + 9 / 4)
    assert both.ceiling == pytest.approx(1 + 12 / 4)


def test_nothing_verified_has_no_accept_length():
    assert math.isnan(AcceptCounts().accept_length) and math.isnan(AcceptCounts().accept_rate)
    assert count_step([0], [0]).accept_length == 1.0


@pytest.mark.parametrize("step", [([1], [2]), ([3], [2], [1]), ([1], [-1])])
def test_impossible_counts_are_refused(step):
    with pytest.raises(ValueError, match="accepted"):
        count_step(*step)


def test_rows_are_packed_front_to_back_and_padded_at_the_end():
    layout = row_layout([2, 0, 1], 8)
    assert layout.cu_seqlens == (0, 3, 4, 6) and layout.num_real == 6
    assert layout.rows == ((0, 0), (0, 1), (0, 2), (1, 0), (2, 0), (2, 1), (2, 0), (2, 0))
    with pytest.raises(ValueError, match="6 rows do not fit in 5"):
        row_layout([2, 0, 1], 5)


def kept(probs):
    return np.flatnonzero(probs).tolist()


def test_backends_differ_where_they_do():
    probs = np.array([0.4, 0.3, 0.2, 0.1])
    # Jointly, rank 2 has 0.7 before it; after top-k 3 the same rank has 0.78.
    assert kept(filter_pytorch(probs, 3, 0.75, 0.0)) == [0, 1, 2]
    assert kept(filter_flashinfer(probs, 3, 0.75, 0.0)) == [0, 1, 2]
    assert kept(filter_flashinfer(probs, 3, 0.75, 0.01)) == [0, 1]
    # Mass before the rank exactly top_p: pytorch keeps it, flashinfer does not.
    exact = np.array([0.5, 0.25, 0.25])
    assert kept(filter_pytorch(exact, 3, 0.5, 0.0)) == [0, 1]
    assert kept(filter_flashinfer(exact, 3, 0.5, 0.0)) == [0]
    # A tie at the edge: pytorch counts, flashinfer keeps both.
    assert kept(filter_pytorch(exact, 2, 1.0, 0.0)) == [0, 1]
    assert kept(filter_flashinfer(exact, 2, 1.0, 0.0)) == [0, 1, 2]


@pytest.mark.parametrize("filter_row", [filter_pytorch, filter_flashinfer])
def test_the_likeliest_token_always_stays(filter_row):
    probs = np.array([0.1, 0.6, 0.3])
    for top_k, top_p, min_p in [(1, 1.0, 0.0), (3, 1e-6, 0.0), (3, 1.0, 1.0), (1, 1e-6, 1.0)]:
        assert filter_row(probs, top_k, top_p, min_p).tolist() == [0, 1, 0]
    assert filter_row(probs, 1 << 30, 1.0, 0.0) == pytest.approx(probs)
