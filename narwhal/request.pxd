# Types of the hot path; see docs/design.md.

from narwhal._fast.body cimport Body

cdef class CompletionRequest:
    cdef readonly object route, max_tokens, prompt_token_count, slo_ttft_s, slo_tpot_s
    cdef readonly Body body
    cdef readonly str model
    cdef readonly bint stream, include_usage, return_token_ids, uses_max_completion_tokens
    cdef readonly long long prompt_bytes

cdef Body _parse(bytes raw)
cdef _expect(Body body, str key, tuple kinds, str allowed, bint quote_text=*)
cdef bint _boolean(Body body, str key) except -1
cdef _integer(Body body, str key, int lowest, bint bounded=*)
cdef bint _include_usage(Body body) except -1
cdef _messages(Body body)
cdef _prompt(Body body)
cdef _check_width(Body body, str key)
cdef _check_model(Body body, str model)
cdef _target(headers, bytes name)
