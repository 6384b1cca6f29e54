/* Coverage of one extension, for libFuzzer.

   libFuzzer wants a table of 8-bit counters per module. clang can write one, gcc can't; but both can call
   a function at the start of each basic block (-fsanitize-coverage=trace-pc), and that is enough: a block's
   counter is picked by a hash of its address. This file is linked into each extension and compiled without
   instrumentation; native.py tells libFuzzer where the table lies. */

#include <stdint.h>

#define COUNTERS (1 << 14)

uint8_t narwhal_counters[COUNTERS];

__attribute__((visibility("hidden"))) void __sanitizer_cov_trace_pc(void) {
    /* Relative to the module, so that a block has the same counter in every run. */
    uint64_t pc = (uint64_t)__builtin_return_address(0) - (uint64_t)narwhal_counters;
    narwhal_counters[(pc * 0x9E3779B97F4A7C15u) >> 50]++;
}
