"""Two ranks whose numbers differ by noise and ties still take the same step (faults A7, A8, C7)."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from sglang_dspark.engine.ranks import FollowRankZero, Ranks, SoleRank
from sglang_dspark.ops.accept import accept_tokens
from sglang_dspark.ops.allocate import allocate
from sglang_dspark.ops.layout import row_layout

BS, GAMMA, BUDGET, NOISE = 8, 5, 17, 1e-3


def one_step(rank: int, ranks: Ranks) -> tuple[torch.Tensor, ...]:
    """What a step decides, from numbers that differ in the third decimal and from exact ties."""
    shared, own = torch.Generator().manual_seed(0), torch.Generator().manual_seed(100 + rank)
    survival = torch.full((BS, GAMMA), 0.9).cumprod(1)  # all requests tie
    survival = survival + NOISE * torch.rand((BS, GAMMA), generator=own)
    logits = torch.randn(BS, GAMMA + 1, 11, generator=shared)
    logits[..., 3] = logits[..., 7] = logits.amax(-1)  # the two best tie on rank 0
    logits = logits + NOISE * torch.rand(logits.shape, generator=own)
    drafts = ranks.bind(logits[:, :-1].argmax(-1))
    budget = ranks.bind_number(BUDGET + rank)
    lens = ranks.bind(allocate(survival, budget))
    layout = row_layout(lens, BS + budget)
    accepted = accept_tokens(drafts, logits.argmax(-1), lens)
    counts, token = ranks.bind(accepted.accepted), ranks.bind(accepted.next_token)
    return drafts, lens, layout.request, counts, token


def _run(rank: int, store: str, queue: mp.Queue) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    followed = one_step(rank, FollowRankZero(dist.group.WORLD, "cpu"))
    alone = one_step(rank, SoleRank())
    queue.put((rank, [t.tolist() for t in followed], [t.tolist() for t in alone]))
    dist.destroy_process_group()


def test_rank_zero_binds_drafts_windows_rows_counts_and_tokens(tmp_path):
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=_run, args=(rank, str(tmp_path / "store"), queue))
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    answers = {
        rank: (followed, alone)
        for rank, followed, alone in (queue.get(timeout=120) for _ in workers)
    }
    for worker in workers:
        worker.join(timeout=60)
    assert answers[0][0] == answers[1][0]
    assert answers[0][1] != answers[1][1], "the noise must matter, or this test shows nothing"
