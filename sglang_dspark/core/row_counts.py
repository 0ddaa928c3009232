"""At which row counts matrix products run on a CPU: oneDNN compiles a kernel for each it meets."""

from __future__ import annotations


def rounded_rows(num_rows: int) -> int:
    """The row count to run at: any up to 16, then eight of each doubling; at most 1/8 more."""
    if num_rows <= 16:
        return num_rows
    step = max(4, 1 << ((num_rows - 1).bit_length() - 4))
    return -(-num_rows // step) * step
