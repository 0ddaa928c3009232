"""Matrix products on weights packed for oneDNN, which is what makes verify rows cheap on a CPU.

Average us per linear layer of a 10 M parameter model, AMD EPYC with AVX-512, 1 thread:

    rows                        1     4     8    16    64   512
    fp32  F.linear (MKL)       88   131   205   224   486  2186
    fp32  packed               65    59    82    96   268  1898
    bf16  F.linear             71    78    84   100   183  1014
    bf16  packed               49    45    51    62   147  1002

Of a model of SGLang's the plain weights stay (loading, updates and whoever reads them see nothing
new), so packing costs their size once more. The draft is ours: it keeps the packed ones only.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import linear, pad

from sglang_dspark.core.row_counts import rounded_rows

Product = Callable[[Tensor], Tensor]  # x [..., in] -> [..., out]

ROWS_HINT = 8  # oneDNN picks a layout for this many rows; measured good from 1 to 512


def packable(weight: Tensor) -> bool:
    if not torch.backends.mkldnn.is_available() or weight.dim() != 2:
        return False
    if weight.dtype is torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return weight.dtype is torch.float32


def pack(weight: Tensor) -> Tensor:
    """[out, in] -> the same numbers in an order that only `packed_linear` reads."""
    return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), ROWS_HINT)


def packed_linear(packed: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., in] of the weight's dtype -> [..., out]

    Run at one of few row counts: oneDNN compiles a kernel for each one that it meets (a ms or
    more), and keeps 1,024 of them.
    """
    num_rows = x.numel() // x.shape[-1]
    spare = rounded_rows(num_rows) - num_rows
    if spare == 0:
        return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")
    rows = pad(x.reshape(num_rows, -1), (0, 0, 0, spare))
    done = torch.ops.mkldnn._linear_pointwise.default(rows, packed, bias, "none", [], "")
    return done[:num_rows].view(*x.shape[:-1], -1)


def either_linear(packed: Tensor, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """`packed_linear`, or the plain product for the few inputs it does not take."""
    if x.dtype is not weight.dtype or x.numel() == 0:
        return linear(x.to(weight.dtype), weight, bias)
    return packed_linear(packed, x, bias)


def product(weight: Tensor, bias: Tensor | None = None) -> Product:
    """x -> x @ weight.T + bias, in the fastest form that this device has for it.

    weight [out, in]; x [..., in] of its dtype and device. Keeps no reference to `weight` where a
    packed copy serves.
    """
    if weight.device.type != "cpu" or not packable(weight):
        return lambda x: linear(x, weight, bias)
    packed, width = pack(weight), weight.shape[0]

    def multiply(x: Tensor) -> Tensor:
        return packed_linear(packed, x, bias) if x.numel() else x.new_empty(*x.shape[:-1], width)

    return multiply
