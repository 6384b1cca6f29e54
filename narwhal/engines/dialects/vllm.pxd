# Types of the hot path; see docs/design.md.

from narwhal._fast.body cimport Body
from narwhal.request cimport CompletionRequest

cdef class Vllm:
    cpdef list prefill_body(self, CompletionRequest request)
    cpdef list decode_body(self, CompletionRequest request, bytes handoff)
    cpdef bytes read_handoff(self, Body reply)
