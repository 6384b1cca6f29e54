# Types of the hot path; see docs/design.md.

cdef class Attempt:
    cdef public object prefill, decode, prefill_waited_s, decode_waited_s, failure, error
    cdef public object prefill_offer, decode_offer, continues_at

cdef class Record:
    cdef public object request_id, client_request_id, route, request_bytes
    cdef public bint stream
    cdef public double arrived, received_at, slo_ttft_s, slo_tpot_s
    cdef public object body_read, sized, seat, prefill, handoff, first_token, last_token, ended
    cdef public object projected_ttft_s, input_tokens, input_tokens_from, output_tokens_from
    cdef public object token_accounting, usage_completion_tokens, prompt_tokens
    cdef public long long output_tokens
    cdef public list attempts

cdef class Settled:
    cdef Record _record
    cdef object _outcome, _counter, _status, _error, _details
