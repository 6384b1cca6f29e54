# Types of the hot path; see docs/design.md.

import cython

from narwhal._fast.body cimport Body
from narwhal._fast.relay cimport Relay
from narwhal.accounting.record cimport Attempt, Record
from narwhal.admission.grant cimport Grant
from narwhal.admission.line cimport SeatRequest
from narwhal.engines.engine cimport Engine
from narwhal.engines.leg cimport Leg, Reply
from narwhal.request cimport CompletionRequest
from narwhal.serving.awaited cimport Awaited
from narwhal.serving.handoff cimport Handoff
from narwhal.serving.head cimport RequestHead
from narwhal.serving.http cimport ClientConnection
from narwhal.serving.router cimport Router

cdef class _Prefilled:
    cdef CompletionRequest request
    cdef Grant grant
    cdef Body body
    cdef Handoff handoff
    cdef double at

cdef class Exchange:
    cdef Router _router
    cdef object _serving, _loop, _way, _script, _route, _stage, _stage_ending, _interruption
    cdef ClientConnection _connection
    cdef RequestHead _head
    cdef Awaited _waiter, _drained
    cdef bint _held, _ended, _decoding, _paused, _was_paused
    cdef Leg _leg
    cdef Relay _relay
    cdef list _grants
    cdef Handoff _handoff
    cdef _Prefilled _prefilled
    cdef double _stage_deadline, _next_comment
    cdef long long _expected_output, _unread
    cdef Py_ssize_t _first_engine
    cdef object _where, _assembler, _continuation, _join
    cdef long long _input_tokens
    cdef readonly Record record
    cdef readonly long long body_limit
    cdef readonly str body_limit_key
    cdef readonly double deadline

    cdef SeatRequest _seat_request
    cdef double _waited_s

    cdef _drop_leg(self)
    cdef _size(self, CompletionRequest request, counted)
    cdef Grant _ask_for_seat(self, phase, avoid, Py_ssize_t producer=*)
    cdef Awaited _send_prefill(self, CompletionRequest request, Engine engine, Grant grant)
    cdef Handoff _take_prefill(self, CompletionRequest request, Engine engine, Grant grant, Reply reply)
    cdef Grant _ask_for_decode_seat(self, Handoff handoff, avoid)

    @cython.locals(done=_Prefilled)
    cdef _finish_prefill(self)
    cdef Awaited _send_decode(self, CompletionRequest request, Engine engine, Grant grant, Handoff handoff)
    cdef _take_decode(self, CompletionRequest request, Grant grant, Reply reply, cached)
    cdef _learn_length(self, CompletionRequest request, long long prompt_tokens)
    cdef _learn_output(self, CompletionRequest request, Relay relay, Grant grant)
    cdef str _leg_id(self, str leg)
    cdef _come_apart(self, ending)
    cdef _take_counts(self, Relay relay, Py_ssize_t engine)
    cdef _enter(self, stage, double limit_s, late)
    cdef _leave(self)
    cdef _set_alarm(self)
    cdef _watch_decode(self, double now)
    cdef bint _decode_goes_on(self, double now) except -1
    cdef _fail_stage(self, ending)
    cdef _let_go_of_handoff(self)

    @cython.locals(grant=Grant)
    cdef _give_back_seats(self)
    cdef _status(self, ending)
    cdef _end(self, ending, status)
    cdef _answer(self, ending)
