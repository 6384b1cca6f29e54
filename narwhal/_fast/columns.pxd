# Cells of the fleet's columns. See columns.pyx.

from cpython.array cimport array

cpdef long long whole(array column, Py_ssize_t row) except? -1
cpdef void set_whole(array column, Py_ssize_t row, long long number) except *
cpdef void add_to(array column, Py_ssize_t row, long long number) except *
cpdef void set_real(array column, Py_ssize_t row, double number) except *
