"""Linear layers on weights packed for oneDNN, which is what makes verify rows cheap on a CPU.

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

import logging
from functools import partial

import psutil
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from sglang_dspark.seam import cpu_layers as seam

logger = logging.getLogger(__name__)

PACKED_SHARE = 0.25  # of the memory free after loading
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
        return linear(x, weight, bias)
    return packed_linear(packed, x, bias)


def pack_model(model: nn.Module) -> int:
    """Pack all plain linear weights, or none; how many. After loading and after every update."""
    layers = [layer for layer in seam.plain_linears(model) if packable(layer.weight)]
    needed = sum(layer.weight.nbytes for layer in layers)
    free_bytes = psutil.virtual_memory().available
    if needed > PACKED_SHARE * free_bytes:
        logger.info(
            "dspark_cpu: weights stay unpacked, a packed copy (%.1f GB) needs %d%% of free memory",
            needed / 1e9,
            100 * needed / free_bytes,
        )
        return 0
    for layer in layers:
        seam.replace_product(layer, partial(either_linear, pack(layer.weight), layer.weight))
    return len(layers)
