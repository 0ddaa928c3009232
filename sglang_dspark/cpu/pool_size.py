"""How many tokens the KV pool holds, where the user gave neither a count nor a memory share.

Stock SGLang takes most of the machine's memory, which on a CPU is everybody's. Here the pool
follows the model: one full context and some headroom, or a moderate context for each running
request, whichever is more, but never more than a share of the memory that is free now. The draft's
pool gets the same token count. Pages are taken when first written, see `CpuKVPool`.
"""

from __future__ import annotations

import psutil

DEFAULT_RUNNING_REQUESTS = 48  # SGLang's own default under speculative decoding
MODERATE_CONTEXT = 1024  # tokens
HEADROOM = 256  # tokens beyond one full context: rows being verified, partly filled pages
FREE_MEMORY_SHARE = 0.3


def pool_tokens(
    context_len: int, kv_bytes_per_token: int, running_requests: int, free_bytes: int
) -> int:
    wanted = max(context_len + HEADROOM, running_requests * MODERATE_CONTEXT)
    affordable = int(free_bytes * FREE_MEMORY_SHARE) // max(1, kv_bytes_per_token)
    return max(HEADROOM, min(wanted, affordable))


def default_pool_tokens(context_len: int, kv_bytes_per_token: int, running_requests: int) -> int:
    free_bytes = psutil.virtual_memory().available
    return pool_tokens(context_len, kv_bytes_per_token, running_requests, free_bytes)
