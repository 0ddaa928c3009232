from __future__ import annotations

import numpy as np
import pytest
import torch

from sglang_dspark.core.filters import filter_flashinfer, filter_pytorch
from sglang_dspark.ops.filters import Filters, filter_probs, target_probs

REFERENCE = {"pytorch": filter_pytorch, "flashinfer": filter_flashinfer}
TOP_K_ALL = 1 << 30
ROWS, VOCAB = 400, 37


def settings(rows, seed=0, largest_k=VOCAB):
    rng = np.random.default_rng(seed)
    top_k = rng.integers(1, largest_k + 1, rows)
    top_p = rng.uniform(0.05, 0.99, rows)
    min_p = rng.uniform(0.0, 0.6, rows)
    top_k[rng.random(rows) < 0.3] = min(TOP_K_ALL, largest_k if largest_k < VOCAB else TOP_K_ALL)
    top_p[rng.random(rows) < 0.3] = 1.0
    min_p[rng.random(rows) < 0.4] = 0.0
    return torch.tensor(top_k), torch.tensor(top_p), torch.tensor(min_p)


def random_probs(rows, ties, dtype, seed=1):
    logits = np.random.default_rng(seed).normal(size=(rows, VOCAB)) * 2
    if ties:
        logits = np.round(logits)  # many equal probabilities, as bf16 logits give
    return torch.softmax(torch.tensor(logits).to(dtype), -1)


@pytest.mark.parametrize("backend", REFERENCE)
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("bounded", [False, True], ids=["sort", "topk"])
def test_equals_the_reference(backend, ties, bounded):
    """In float64, where no two sums differ by rounding across a limit."""
    probs = random_probs(ROWS, ties, torch.float64)
    top_k, top_p, min_p = settings(ROWS, largest_k=9 if bounded else VOCAB)
    filters = Filters(top_k, top_p, min_p, backend, 9 if bounded else None)
    got = filter_probs(probs, filters).numpy()
    for r in range(ROWS):
        row = (int(top_k[r]), float(top_p[r]), float(min_p[r]))
        expected = REFERENCE[backend](probs[r].numpy(), *row)
        assert np.array_equal(got[r] > 0, expected > 0), row
        assert got[r] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("backend", REFERENCE)
def test_a_row_does_not_depend_on_its_batch(backend):
    probs = random_probs(50, True, torch.float32)
    top_k, top_p, min_p = (x.float() if x.is_floating_point() else x for x in settings(50))
    whole = filter_probs(probs, Filters(top_k, top_p, min_p, backend, None))
    for r in range(50):
        bound = int(top_k[r])
        one = Filters(top_k[r : r + 1], top_p[r : r + 1], min_p[r : r + 1], backend, bound)
        assert torch.equal(filter_probs(probs[r : r + 1], one)[0] > 0, whole[r] > 0)


@pytest.mark.parametrize("bounded", [False, True], ids=["sort", "topk"])
@pytest.mark.parametrize("with_min_p", [False, True])
def test_equals_stock_sglang_on_the_pytorch_backend(bounded, with_min_p):
    sampler = pytest.importorskip("sglang.srt.layers.sampler")
    probs = random_probs(ROWS, False, torch.float32)
    top_k, top_p, min_p = settings(ROWS, largest_k=9 if bounded else VOCAB)
    top_p, min_p = top_p.float(), min_p.float() * with_min_p
    _, weights, ids, _ = sampler.top_k_top_p_min_p_sampling_from_probs_torch(
        probs.clone(), top_k, top_p, min_p, with_min_p, None, None, return_filtered_probs=True
    )
    stock = torch.zeros_like(probs).scatter_(1, ids.long(), weights)
    stock /= stock.sum(-1, keepdim=True)
    got = filter_probs(probs, Filters(top_k, top_p, min_p, "pytorch", 9 if bounded else None))
    differ = ((got > 0) != (stock > 0)) & (top_p < 1.0)[:, None]
    assert not bool(differ.any())
    # A row with top_p 1 keeps its tail; stock may lose some of it to rounding of the running sum.
    assert bool(((got > 0) | (stock == 0)).all())
    torch.testing.assert_close(got, stock, rtol=1e-5, atol=1e-6)


def test_limits_met_exactly():
    """pytorch keeps a token with exactly top_p before it, flashinfer does not."""
    probs = torch.tensor([[0.5, 0.25, 0.25]])
    settings = (torch.tensor([3]), torch.tensor([0.5]), torch.tensor([0.0]))
    kept = {b: filter_probs(probs, Filters(*settings, b, None)).gt(0).sum() for b in REFERENCE}
    assert kept == {"pytorch": 2, "flashinfer": 1}
    settings = (torch.tensor([3]), torch.tensor([1.0]), torch.tensor([0.5]))
    for backend in REFERENCE:  # min_p is met by equality
        assert filter_probs(probs, Filters(*settings, backend, None)).gt(0).all()


@pytest.mark.parametrize("backend", REFERENCE)
def test_top_p_one_keeps_the_tail_whatever_the_sum_rounds_to(backend):
    probs = torch.tensor([[0.9, 0.1 + 3e-7] + [1e-9] * 100])  # two of them hold more than 1
    settings = (torch.tensor([90]), torch.tensor([1.0]), torch.tensor([0.0]))
    assert int(filter_probs(probs, Filters(*settings, backend, None)).gt(0).sum()) >= 90


def test_settings_broadcast_over_the_rows_of_a_block():
    logits = torch.randn(3, 5, VOCAB)
    temperature = torch.tensor([0.5, 1.0, 2.0])[:, None]
    top_k, top_p, min_p = (x[:, None] for x in settings(3))
    block = target_probs(logits, temperature, Filters(top_k, top_p, min_p, "pytorch", None))
    spread = [x.expand(3, 5).reshape(15) for x in (temperature, top_k, top_p, min_p)]
    flat = target_probs(logits.view(15, VOCAB), spread[0], Filters(*spread[1:], "pytorch", None))
    assert torch.equal(block.view(15, VOCAB), flat)


def test_no_filters_is_a_plain_softmax():
    logits = torch.randn(4, 9)
    assert torch.equal(target_probs(logits, torch.ones(4), None), torch.softmax(logits, -1))


def test_top_k_1_alone_is_a_point_mass_on_the_lowest_argmax():
    logits = torch.tensor([[1.0, 3.0, 3.0], [0.0, 1.0, 0.0]])
    top_1 = Filters(torch.tensor([1, 1]), torch.ones(2), torch.zeros(2), "pytorch", 1)
    expected = [[0.0, 1.0, 0.0], [0.0, 1.0, 0.0]]
    assert target_probs(logits, torch.ones(2), top_1).tolist() == expected


def test_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="--sampling-backend pytorch or flashinfer"):
        Filters(torch.ones(1), torch.ones(1), torch.ones(1), "ascend", None)
