"""The C allocator: freed memory is kept for the next step instead of going back to the system.

glibc asks the kernel for every large tensor, which clears all of its pages, and returns it when it
is freed. A training step on a CPU does that hundreds of times; it was 40 % of the time of the
output layer. With mapping off, freed memory stays in the process and is used again.
"""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD = -1
_M_MMAP_MAX = -4


def keep_freed_memory() -> bool:
    """Ask the allocator to reuse large blocks; false where it is not glibc's."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_MAX, 0)) and bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))
