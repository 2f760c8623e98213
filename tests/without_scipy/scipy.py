"""Stands before scipy on the path of processes that tests start: servers and commands are deployed without it.

Numba would import scipy.linalg in each of them, in case compiled code calls BLAS, which ours never does.
"""

raise ImportError("processes that tests start have no scipy, as where fedcascade is deployed: see tests/without_scipy")
