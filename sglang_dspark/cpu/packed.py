"""Matrix products on weights packed for oneDNN, which is what makes verify rows cheap on a CPU.

Average us per linear layer of a 10 M parameter model, AMD EPYC with AVX-512, 1 thread:

    rows                        1     4     8    16    64   512
    fp32  F.linear (MKL)       88   131   205   224   486  2186
    fp32  packed               65    59    82    96   268  1898
    bf16  F.linear             71    78    84   100   183  1014
    bf16  packed               49    45    51    62   147  1002

The plain weights stay (loading, updates and whoever reads them see nothing new), so packing costs
their size once more; a model that is large for the machine is left as it is.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

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
    """x [..., in] of the weight's dtype -> [..., out]"""
    return torch.ops.mkldnn._linear_pointwise.default(x, packed, bias, "none", [], "")


def either_linear(packed: Tensor, weight: Tensor, x: Tensor, bias: Tensor | None = None) -> Tensor:
    """`packed_linear`, or the plain product for the few inputs it does not take."""
    if x.dtype is not weight.dtype or x.numel() == 0:
        return linear(x.to(weight.dtype), weight, bias)
    return packed_linear(packed, x, bias)
