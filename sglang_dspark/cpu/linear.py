"""A model's plain linear layers and LM head, moved to packed weights (see `ops/packed.py`)."""

from __future__ import annotations

import logging
from functools import partial

import psutil
from torch import nn

from sglang_dspark.ops.packed import either_linear, pack, packable
from sglang_dspark.seam import cpu_layers as seam

logger = logging.getLogger(__name__)

PACKED_SHARE = 0.25  # of the memory free after loading


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
