# Types of the hot path; see docs/design.md.

from narwhal._fast.relay cimport Relay
from narwhal.engines.leg cimport Leg

cdef class Engine:
    cdef readonly object config, dialect, pool
    cdef readonly str id, prefill_leg, decode_leg, whole_request
    cdef str _get_head
    cdef bytes _tokenize_head
    cdef dict _heads

    cpdef Leg call(self, route, list body, str request_id, future, Relay relay=*)
    cdef Leg _post(self, bytes head, list body, str request_id, future, Relay relay)
