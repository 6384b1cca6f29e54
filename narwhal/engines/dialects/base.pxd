# Types of the hot path; see docs/design.md.

from narwhal.request cimport CompletionRequest

cpdef dict name_model(CompletionRequest request)
cpdef dict ask_for_usage(CompletionRequest request)
