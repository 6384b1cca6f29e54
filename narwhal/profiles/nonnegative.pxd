# Types of the hot path; see docs/design.md.

import cython

cdef class NormalEquations:
    cdef double g00, g01, g02, g11, g12, g22, m0, m1, m2

    cpdef add(self, (double, double, double) x, double y, double weight)

    @cython.locals(
        s0=double, s1=double, s2=double, g01=double, g02=double, g12=double, m0=double, m1=double, m2=double,
        x0=double, x1=double, x2=double, gain=double, best=(double, double, double),
    )
    cpdef (double, double, double) solve(self)

cdef bint _more(double explained, double gain) noexcept


@cython.locals(pivot=double)
cdef (double, double) _two(double g, double m0, double m1) noexcept


@cython.locals(pivot=double, l11=double, l21=double, l22=double, y1=double, x1=double, x2=double)
cdef (double, double, double) _three(
    double g01, double g02, double g12, double m0, double m1, double m2
) noexcept

cdef double _SINGULAR
