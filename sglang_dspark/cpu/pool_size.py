"""How many tokens the KV pool holds, where the user gave neither a count nor a memory share.

Stock SGLang takes most of the machine's memory. On a CPU that memory is everybody's, and every
page of it costs a fault when first written. So the pool follows the model: one full context and
some headroom, or a moderate context for each running request, whichever is more, but never more
than a share of the memory that is free now. The draft's pool gets the same token count.
"""

from __future__ import annotations

from dataclasses import dataclass

import psutil

DEFAULT_RUNNING_REQUESTS = 48  # SGLang's own default under speculative decoding
MODERATE_CONTEXT = 1024  # tokens
HEADROOM = 256  # tokens beyond one full context: rows being verified, partly filled pages
FREE_MEMORY_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class ModelShape:
    context_len: int
    kv_bytes_per_token: int  # K and V of all layers, on one rank


def pool_tokens(shape: ModelShape, running_requests: int, free_bytes: int) -> int:
    wanted = max(shape.context_len + HEADROOM, running_requests * MODERATE_CONTEXT)
    affordable = int(free_bytes * FREE_MEMORY_SHARE) // shape.kv_bytes_per_token
    return max(HEADROOM, min(wanted, affordable))


def default_pool_tokens(shape: ModelShape, running_requests: int) -> int:
    return pool_tokens(shape, running_requests, psutil.virtual_memory().available)
