# An answer that is timed instead of passed on. See recorder.pyx.

from narwhal._fast.relay cimport Relay

cdef class Recorder(Relay):
    cdef double* times          # when each event with output came
    cdef Py_ssize_t count, room
    cdef long long id_tokens    # valid token IDs in all of them
    cdef bint bare              # some event with output had no valid list of IDs
    cdef object on_data         # called with each event's data; None: nobody wants to see it
    cdef str cut                # why the body ended before [DONE]; None if it did not

    cdef int note(self, double at) except -1
