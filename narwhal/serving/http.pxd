# Types of the hot path; see docs/design.md.

from narwhal._fast.inbox cimport Inbox
from narwhal._fast.outlet cimport Outlet
from narwhal.serving.alarm cimport Alarm
from narwhal.serving.head cimport RequestHead

cdef class ClientConnection(Inbox):
    cdef object _server, _loop
    cdef readonly object _transport
    cdef object _state
    cdef readonly bytes _buffer
    cdef bint _head_begun
    cdef list _body
    cdef Py_ssize_t _body_size
    cdef bint _body_done
    cdef long long _left
    cdef object _decoder
    cdef bint _pumping, _pump_due
    cdef readonly bint _reading_paused, _writing_paused
    cdef long long _unread
    cdef double _linger_until
    cdef readonly Outlet outlet
    cdef readonly Alarm alarm
    cdef readonly object handler
    cdef readonly RequestHead head
    cdef readonly str peer
    cdef readonly bint stopping

    cdef _pump(self)
    cdef _regulate_reading(self)
    cdef bint _read_head(self) except -1
    cdef _begin(self, RequestHead head)
    cdef _body_is_read(self)
    cdef _watch_body(self)
    cdef _read_body(self, bytes data)
    cdef _serve(self, bytes body)
    cdef bint _take(self, bytes data) except -1
    cdef _keep(self, bytes payload)
    cdef _set_alarm_in(self, double seconds)
    cpdef finish(self)
