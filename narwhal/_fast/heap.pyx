"""How the C library's allocator treats large blocks.

By default glibc takes a large block from the system and gives it back when it is freed, page by page; so each
body of some hundred kilobytes costs more for its page faults than for all that is done with it. Told to keep
what was freed, up to a bound, the next body finds its pages there.
"""

cdef extern from *:
    """
    #include <stdlib.h>
    #ifdef __GLIBC__
    #include <malloc.h>
    static int keep_blocks(int block, int total) {
        return mallopt(M_MMAP_THRESHOLD, block) && mallopt(M_TRIM_THRESHOLD, total);
    }
    #else
    static int keep_blocks(int block, int total) { return 0; }
    #endif
    """
    int keep_blocks(int block, int total) noexcept nogil


def keep_freed(int block, int total) -> bool:
    """Keep freed blocks of up to `block` bytes, and `total` bytes of free memory; whether the allocator can.

    glibc takes no `block` over 32 MiB.
    """
    return keep_blocks(block, total) != 0
