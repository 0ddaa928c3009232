"""Every function of `ops/` runs on tensors without data: it can not have read any back."""

import ast
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import sglang_dspark.ops
from sglang_dspark.ops import accept, draw, filters, layout, markov, noise

OPS = Path(sglang_dspark.ops.__file__).parent
BS, GAMMA, VOCAB = 3, 2, 8
READS = {"item", "tolist", "cpu", "numpy", "nonzero", "bincount", "unique", "masked_select"}


@pytest.mark.parametrize("path", sorted(OPS.glob("*.py")), ids=lambda p: p.name)
def test_nothing_in_ops_names_a_host_read(path):
    calls = {n.attr for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Attribute)}
    assert not calls & READS


@pytest.mark.parametrize("device", ["cpu", "cuda"])  # no GPU needed: a fake tensor has no memory
def test_a_step_runs_without_data(device):
    with FakeTensorMode(), torch.device(device):
        lens, ids = torch.zeros(BS, dtype=torch.int64), torch.zeros(BS, dtype=torch.int64)
        flags, temperature = torch.zeros(BS, dtype=torch.bool), torch.ones(BS)
        u = noise.BlockNoise(GAMMA, device)(ids, ids)
        shared = noise.CoupledNoise(VOCAB, device)(ids, ids, GAMMA + 1)
        base = torch.rand(BS, GAMMA, VOCAB)
        chooser = markov.Mixed(temperature, u.draft, VOCAB, flags, flags, shared)
        block = markov.sample_block(base, base, ids, None, chooser)
        for backend in ("pytorch", "flashinfer"):
            per_row = (torch.ones(BS, 1, dtype=torch.int64), torch.ones(BS, 1), torch.ones(BS, 1))
            probs = filters.target_probs(
                torch.rand(BS, GAMMA + 1, VOCAB),
                temperature[:, None],
                filters.Filters(*per_row, backend, None),
            )
        tokens = draw.race(probs, shared)
        out = accept.accept_mixed(block.tokens, block.probs, probs, lens, u, flags, tokens)
        rows = layout.row_layout(lens, 7)
        packed = layout.pack(probs, rows)
        layout.unpack(packed, rows, GAMMA + 1)
        accept.accept_sampled(block.tokens, None, packed, lens, u, rows.row_start)
        assert out.accepted.shape == out.next_token.shape == (BS,)


def test_the_check_above_would_notice():
    with FakeTensorMode(), pytest.raises(Exception, match="scalar"):
        int(torch.zeros(1))
