"""Packed products are the plain ones, for every shape and dtype a draft can have."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear

from sglang_dspark.core.row_counts import rounded_rows
from sglang_dspark.ops.packed import product

TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 7, 17, 64, 94, 300])
@pytest.mark.parametrize("biased", [False, True])
def test_product_is_linear(dtype, rows, biased):
    torch.manual_seed(rows)
    weight = torch.randn(48, 32, dtype=dtype) / 32**0.5
    bias = torch.randn(48, dtype=dtype) if biased else None
    x = torch.randn(rows, 32, dtype=dtype)
    done = product(weight, bias)(x)
    assert done.shape == (rows, 48) and done.dtype is dtype
    torch.testing.assert_close(
        done, linear(x, weight, bias), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def test_rows_in_more_dimensions_keep_their_shape():
    weight, x = torch.randn(6, 4), torch.randn(2, 3, 4)
    torch.testing.assert_close(product(weight)(x), linear(x, weight))


def test_few_row_counts_are_run_and_none_much_larger_than_asked():
    run = [rounded_rows(n) for n in range(1, 8193)]
    assert len(set(run)) <= 90
    assert all(n <= r <= max(n + 3, n * 1.125) for n, r in enumerate(run, start=1))
    assert all(rounded_rows(r) == r for r in run)
