"""`attend` against row-by-row attention: every forward mode, ragged batches, both cache dtypes."""

from __future__ import annotations

import random

import pytest
import torch

from sglang_dspark.cpu import plan as plan_module
from sglang_dspark.cpu.attention import attend
from sglang_dspark.cpu.plan import build_plan

from .reference import Case, attend_slowly, random_case

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2}


def plan_of(case: Case, *, own_slots: bool = False, max_gathered: int = 1 << 20):
    """own_slots: as in a verify forward, where the table need not know the new rows yet."""
    table = case.req_to_token
    if own_slots:
        table = table.clone()
        for req, (length, count) in enumerate(zip(case.kv_lens, case.row_counts, strict=True)):
            table[case.req_indices[req], length - count : length] = 0  # a slot holding NaN
    return build_plan(
        req_to_token=table,
        req_indices=case.req_indices,
        kv_lens=case.kv_lens,
        row_counts=case.row_counts,
        new_slots=case.new_slots if own_slots else None,
        max_gathered=max_gathered,
    )


def run(case: Case, *, causal: bool = True, window: int = -1, **plan_options) -> torch.Tensor:
    return attend(
        case.q,
        case.k_pool,
        case.v_pool,
        plan_of(case, **plan_options),
        causal=causal,
        window=window,
        scale=case.q.shape[2] ** -0.5,
    )


def check(case: Case, *, causal: bool = True, window: int = -1, **plan_options) -> None:
    got = run(case, causal=causal, window=window, **plan_options)
    wanted = attend_slowly(case, causal=causal, window=window)
    error = (got.double() - wanted).abs().max().item()
    assert error < TOLERANCE[case.q.dtype], error


def ragged(seed: int, *, reqs: int, longest: int, rows: tuple[int, int]):
    draw = random.Random(seed)
    return {
        "contexts": [draw.randint(0, longest) for _ in range(reqs)],
        "row_counts": [draw.randint(*rows) for _ in range(reqs)],
    }


MODES = {
    "decode": {"rows": (1, 1), "own_slots": False, "causal": True},
    "prefill": {"rows": (2, 90), "own_slots": False, "causal": True},
    "mixed": {"rows": (1, 40), "own_slots": False, "causal": True},
    "verify uniform": {"rows": (6, 6), "own_slots": True, "causal": True},
    "verify ragged": {"rows": (1, 8), "own_slots": True, "causal": True},
    "draft block": {"rows": (7, 7), "own_slots": True, "causal": False},
}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("reqs", [1, 5])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_equals_row_by_row_attention(mode, reqs, dtype):
    options = MODES[mode]
    for seed in range(2):
        shape = ragged(seed, reqs=reqs, longest=60, rows=options["rows"])
        case = random_case(seed, **shape, page=(1, 4)[seed], dtype=dtype)
        check(case, causal=options["causal"], own_slots=options["own_slots"])


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (8, 2)])
def test_query_heads_share_kv_heads(heads, kv_heads):
    shape = ragged(3, reqs=3, longest=30, rows=(1, 5))
    check(random_case(3, **shape, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("rows", [(1, 6), (40, 150)])
def test_sliding_window(rows, causal):
    check(random_case(4, **ragged(4, reqs=3, longest=40, rows=rows)), causal=causal, window=5)


def test_prefill_longer_than_a_chunk_of_rows():
    check(random_case(5, contexts=[37, 0], row_counts=[300, 129]))
    check(random_case(6, contexts=[37], row_counts=[300]), causal=False)


def test_like_lengths_share_a_group_and_unlike_ones_do_not():
    case = random_case(7, contexts=[3000, 10, 2900, 20], row_counts=[1, 1, 1, 1])
    plan = plan_of(case)
    assert [group.num_reqs for group in plan.groups] == [2, 2]
    check(case)


@pytest.mark.parametrize("causal", [True, False])
def test_short_windows_are_not_padded_to_long_ones_where_that_saves_much(causal):
    rows = [2, 8, 1, 7, 2, 3, 1, 2, 2, 1]
    case = random_case(11, contexts=[400 - 5 * i for i in range(10)], row_counts=rows)
    assert [(g.num_reqs, g.max_rows) for g in plan_of(case).groups] == [(7, 2), (3, 8)]
    check(case, causal=causal)
    short = random_case(11, contexts=[40] * 10, row_counts=rows)
    assert [(g.num_reqs, g.max_rows) for g in plan_of(short).groups] == [(10, 8)]


def test_a_group_gathers_no_more_than_its_bound():
    case = random_case(8, contexts=[50] * 9, row_counts=[3] * 9)
    plan = plan_of(case, max_gathered=200)
    assert all(group.num_reqs * group.max_kv <= 200 for group in plan.groups)
    check(case, max_gathered=200)


def test_one_request_in_consecutive_slots_is_read_in_place():
    case = random_case(9, contexts=[20], row_counts=[2])
    slots = case.slots(0)
    k_pool, v_pool = torch.zeros(2, 40, *case.k_pool.shape[1:])
    k_pool[5:27], v_pool[5:27] = case.k_pool[slots], case.v_pool[slots]
    table = case.req_to_token.clone()
    table[case.req_indices[0], :22] = torch.arange(5, 27, dtype=torch.int32)
    moved = Case(**{**vars(case), "k_pool": k_pool, "v_pool": v_pool, "req_to_token": table})
    assert plan_of(moved).groups[0].kv_start == 5
    check(moved)


def test_a_row_does_not_depend_on_the_rest_of_the_batch():
    case = random_case(10, contexts=[33, 7, 120, 64], row_counts=[1, 4, 8, 2])
    together = run(case)
    row = 0
    for req, count in enumerate(case.row_counts):
        alone = Case(
            q=case.q[row : row + count],
            k_pool=case.k_pool,
            v_pool=case.v_pool,
            req_to_token=case.req_to_token,
            req_indices=case.req_indices[req : req + 1],
            kv_lens=case.kv_lens[req : req + 1],
            row_counts=[count],
            new_slots=case.new_slots[row : row + count],
        )
        assert (run(alone) - together[row : row + count]).abs().max() < 1e-6
        row += count


def test_new_rows_may_stand_past_the_end_of_the_request_table():
    case = random_case(11, contexts=[30, 4], row_counts=[6, 6])
    narrow = Case(**{**vars(case), "req_to_token": case.req_to_token[:, :32].contiguous()})
    got = attend(
        case.q,
        case.k_pool,
        case.v_pool,
        plan_of_narrow(narrow),
        causal=True,
        window=-1,
        scale=case.q.shape[2] ** -0.5,
    )
    assert (got.double() - attend_slowly(case, causal=True)).abs().max() < 2e-6


def plan_of_narrow(case: Case):
    return build_plan(
        req_to_token=case.req_to_token,
        req_indices=case.req_indices,
        kv_lens=case.kv_lens,
        row_counts=case.row_counts,
        new_slots=case.new_slots,
        max_gathered=1 << 20,
    )


@pytest.mark.parametrize(
    "mistake",
    ["one position too many", "one too few", "block seen causally", "padding seen"],
)
def test_these_tests_notice_a_wrong_mask(mistake, monkeypatch):
    true_visible = plan_module.visible

    def wrong(**asked):
        allowed = true_visible(**asked)
        if mistake == "one position too many":
            return allowed | allowed.roll(1, dims=-1)
        if mistake == "one too few":
            return allowed & allowed.roll(1, dims=-1)
        if mistake == "block seen causally":
            return true_visible(**{**asked, "causal": True})
        return torch.ones_like(allowed)

    monkeypatch.setattr(plan_module, "visible", wrong)
    causal = mistake != "block seen causally"
    case = random_case(12, contexts=[9, 30, 17], row_counts=[4, 4, 4])
    with pytest.raises(AssertionError):
        check(case, causal=causal)
