import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_dspark.core import layout as ref
from sglang_dspark.ops.layout import full_layout, pack, row_layout, unpack


@given(lens=st.lists(st.integers(0, 5), min_size=1, max_size=9), padding=st.integers(0, 4))
def test_equals_the_reference(lens, padding):
    total = sum(lens) + len(lens) + padding
    expected = ref.row_layout(lens, total)
    got = row_layout(torch.tensor(lens), total)
    assert got.cu_seqlens.tolist() == list(expected.cu_seqlens)
    assert list(zip(got.request.tolist(), got.row.tolist(), strict=True)) == list(expected.rows)
    assert got.is_real.tolist() == [i < expected.num_real for i in range(total)]
    assert got.row_start.tolist() == list(expected.cu_seqlens[:-1])


@pytest.mark.parametrize("shape", [(), (3,)])
def test_pack_then_unpack_gives_the_windows_back(shape):
    lens = torch.tensor([3, 0, 1])
    dense = torch.arange(12 * int(np.prod(shape))).view(3, 4, *shape)
    layout = row_layout(lens, 9)
    rows = pack(dense, layout)
    assert torch.equal(rows[:4], dense[0]) and torch.equal(rows[4], dense[1, 0])
    assert torch.equal(
        rows[7:], dense[2, :1].expand(2, *shape) if shape else dense[2, :1].expand(2)
    )
    back = unpack(rows, layout, 4)
    for r, length in enumerate(lens.tolist()):
        assert torch.equal(back[r, : length + 1], dense[r, : length + 1])
        for k in range(length + 1, 4):  # past the window: the last row again
            assert torch.equal(back[r, k], dense[r, length])


def test_the_full_layout_is_a_reshape():
    full, built = full_layout(3, 2, "cpu"), row_layout(torch.full((3,), 2), 9)
    for name in ("cu_seqlens", "request", "row", "is_real"):
        assert torch.equal(getattr(full, name), getattr(built, name)), name
    dense = torch.rand(3, 3, 5)
    assert torch.equal(pack(dense, full), dense.reshape(9, 5))
    assert torch.equal(unpack(dense.reshape(9, 5), full, 3), dense)
