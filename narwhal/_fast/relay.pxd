# One answer on its way from an engine's stream to a client. See relay.pyx.

from narwhal._fast.assemble cimport Assembler
from narwhal._fast.outlet cimport Outlet
from narwhal._fast.recall cimport Recall
from narwhal._fast.scan cimport Facts, Memo
from narwhal._fast.sse cimport Sse

cdef enum Stage:
    HOLDING = 0     # nothing has been sent: what came so far waits for the first output
    FLOWING = 1     # the head is out, events pass
    DONE = 2        # [DONE] came
    FAILED = 3      # see `failure`

cdef struct Edit:
    Py_ssize_t start, end       # what to leave out of an event's data
    Py_ssize_t put              # bytes of the relay's own cached-tokens figure to put there (0: none)

cdef class Relay:
    # Looked at for each event.
    cdef Outlet outlet          # None when assembling
    cdef Assembler assembler    # None when streaming
    cdef object join            # rewrites the events of an attempt that goes on with an answer; or None
    cdef Recall recall          # takes note of what passes, in case another engine has to go on; or None
    cdef bytes cached_figure    # the producer's cached prompt tokens as digits, or None
    cdef bytearray pending      # the beginning of a block whose end has not come
    cdef list held              # what waits for the first output
    cdef Py_ssize_t held_size
    cdef Py_ssize_t limit       # bytes of one event, and of what is held before the first output
    cdef Stage stage
    cdef Sse sse
    cdef bint framed            # the client takes chunked transfer coding
    cdef bint keep_ids          # the client asked for token IDs
    cdef bint keep_usage        # the client asked for usage
    cdef bint need_ids          # the engine supplies token IDs: output without them is an error
    cdef bint first_block
    cdef bint kept_last         # the block before was passed on (decides over the tail of its line ending)
    cdef bint head_sent
    cdef bint closed_out        # the last bytes of the reply have been sent
    cdef bint announced         # the owner knows of the first output
    cdef bint settled           # the owner knows of the end
    cdef readonly double first_at, last_at      # of output or tokens; 0: none yet
    cdef readonly double heard_at               # of anything
    cdef readonly long long tokens, output_events   # of the whole answer, so far
    cdef Memo memo              # how this stream's events begin

    # The rest of what is wanted, and of what was seen, for whoever keeps count.
    cdef object owner           # told of the first output and of the end
    cdef bytes head             # the reply's head, sent with the first output
    cdef readonly double started_at
    cdef readonly long long carried             # of the tokens, those of the attempts it was begun by
    cdef readonly bint unjoinable               # what failed is that the rest does not fit what came before
    cdef readonly long long dropped_after_done  # events, of those that came with [DONE] in one read
    cdef readonly long long prompt_tokens, completion_tokens
    cdef readonly bint finished
    cdef readonly bint usage_told               # an event for usage alone came, after the last output
    cdef readonly str failure, failure_message
    cdef readonly bytes error_object

    cdef void fetch_ahead(self, int step) noexcept
    cdef void consume(self, const unsigned char* p, Py_ssize_t n, double at)
    cdef void flush(self)
    cdef void settle(self)
    cdef void fail(self, str name, str message)
    cdef void too_large(self)
    cdef Py_ssize_t blocks(self, const unsigned char* p, Py_ssize_t n, double at)
    cdef bint block(self, const unsigned char* p, Py_ssize_t n, Py_ssize_t only, double at)
    cdef bint joined_block(self, const unsigned char* p, Py_ssize_t n, double at)
    cdef bytes lines_of(self, const unsigned char* p, Py_ssize_t n)
    cdef bint event(self, const unsigned char* data, Py_ssize_t size, double at, bint is_error, Facts* facts)
    cdef void send_read(self)
    cdef void hold(self)
    cdef void release_held(self)
    cdef void append(self, bytes block, bint last)
    cdef void end_of_body(self, str why)
    cdef void send_chunk(self, const unsigned char* p, Py_ssize_t n, bint last)
