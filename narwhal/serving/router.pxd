# Types of the hot path; see docs/design.md.

import cython

from narwhal._fast.relay cimport Relay
from narwhal.accounting.accounts cimport Accounts
from narwhal.accounting.counters cimport EngineCounters
from narwhal.accounting.record cimport Record
from narwhal.admission.door cimport Door
from narwhal.fleet.table cimport FleetTable
from narwhal.fleet.work cimport Work
from narwhal.placement.place cimport Placement
from narwhal.profiles.input_length cimport InputLengths
from narwhal.profiles.models cimport FleetModels
from narwhal.profiles.output_lengths cimport OutputLengths

cdef class Router:
    cdef readonly object config, loop, readiness, lifecycle, monitor, retries, random, scraper
    cdef readonly FleetTable table
    cdef readonly FleetModels models
    cdef readonly Work work
    cdef readonly Placement placement
    cdef readonly Door door
    cdef readonly list engines
    cdef readonly InputLengths input_lengths
    cdef readonly OutputLengths output_lengths
    cdef readonly Accounts accounts
    cdef readonly double started_at
    cdef readonly set exchanges
    cdef object _journal, _loop_lag, _ids, _changed, _sweep, _look, _leg_warnings, _drain_file
    cdef str _id_prefix
    cdef set _tasks

    cpdef _new_id(self)
    cpdef Record arrived(self, exchange, route)
    cpdef ended(self, exchange, ending, status)
    cpdef leg_succeeded(self, Py_ssize_t engine)

    @cython.locals(figures=EngineCounters)
    cpdef counted(self, Py_ssize_t engine, Relay relay)
    cpdef expect_output(self, input_tokens, max_tokens)
