# What has been delivered of an answer, so that another engine can go on with it. See recall.pyx.

from narwhal._fast.json cimport Cursor, Value

cdef class Recall:
    cdef bint chat
    cdef Py_ssize_t limit               # of all that is kept, in bytes
    cdef bytearray id_text              # the delivered IDs as they came, with commas between them
    cdef Py_ssize_t seam_size           # bytes of that at the seam
    cdef bytearray tail_text            # the text delivered since the seam, as JSON writes it
    cdef bytes last_logprobs            # of the event before the seam, or None
    cdef readonly bint plain            # nothing came that only the engine that began could go on with
    cdef readonly bint finished         # a finish_reason came
    cdef readonly bytes id, created     # the answer's, as JSON writes them, or None
    cdef readonly bytes prompt_ids      # the prompt's token IDs as a JSON list, or None
    cdef readonly long long tokens      # delivered
    cdef readonly long long seam        # of these, up to where the text is complete

    cdef void note(self, const unsigned char* p, Py_ssize_t n)
    cdef void clear(self)
    cdef int read_event(self, const unsigned char* p, Py_ssize_t n) except -1
    cdef int read_choice(self, Cursor* c) except -1
    cdef int read_delta(self, Cursor* c, int depth, Py_ssize_t* text_start, Py_ssize_t* text_end) except -1
    cdef int take_prompt(self, Cursor* c, Value* ids) except -1
    cdef int take_ids(self, const unsigned char* p, Py_ssize_t start, Py_ssize_t end) except -1
