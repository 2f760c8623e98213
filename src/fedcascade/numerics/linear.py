"""Compiled linear algebra of small symmetric matrices, in one fixed order of operations.

Features come as *columns*: shape (dimension, items), one row per coordinate, so that inner loops run over neighbouring
items and vectorise. No sum is reassociated: an item's score has the same bits alone or among others, in all engines.
"""

import numpy as np
from numpy.typing import NDArray

from fedcascade.numerics.elementary import log
from fedcascade.numerics.jit import jit, jit_inline
from fedcascade.numerics.simd import DOUBLES, divide, subtract_product, take_root

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]
Features = NDArray[np.float32]


@jit
def factorise_shifted(gram: Matrix, shift: float) -> Matrix:
    """Return the upper factor U with shift I + gram = U^T U; it has a NaN if the sum is not positive definite."""
    upper = gram.copy()
    for i in range(upper.shape[0]):
        upper[i, i] += shift
    factorise(upper)
    return upper


@jit_inline
def factorise(matrix: Matrix) -> None:
    """Overwrite a matrix with its upper factor, and zeros below it."""
    size = matrix.shape[0]
    for k in range(size):
        matrix[k, :k] = 0.0
        pivot = np.sqrt(matrix[k, k])
        for j in range(k, size):
            matrix[k, j] /= pivot
        for i in range(k + 1, size):
            factor = matrix[k, i]
            for j in range(i, size):
                matrix[i, j] -= factor * matrix[k, j]


@jit
def is_finite_symmetric(gram: Matrix, moment: Vector) -> bool:
    """Return whether all numbers are finite and the matrix is symmetric."""
    for i in range(moment.size):
        if not np.isfinite(moment[i]):
            return False
        for j in range(moment.size):
            if not np.isfinite(gram[i, j]) or gram[i, j] != gram[j, i]:
                return False
    return True


@jit_inline
def compute_log_det(upper: Matrix) -> float:
    """Compute ln det of the matrix whose upper factor is given."""
    total = 0.0
    for k in range(upper.shape[0]):
        total += log(upper[k, k])
    return 2.0 * total


@jit_inline
def solve_factor_into(upper: Matrix, vector: Vector) -> float:
    """Overwrite a vector v with U^-T v for an upper factor U; return its squared length, v^T matrix^-1 v."""
    total = 0.0
    for k in range(vector.size):
        value = vector[k]
        for i in range(k):
            value -= upper[i, k] * vector[i]
        vector[k] = value / upper[k, k]
        total += vector[k] * vector[k]
    return total


@jit_inline
def invert_root_into(upper: Matrix, root: Matrix) -> None:
    """Fill ``root`` with the lower triangular R, R^T R = matrix^-1: the width of x is the length of R x."""
    for j in range(upper.shape[0]):
        root[j] = 0.0
        root[j, j] = 1.0
        for k in range(j):
            factor = upper[k, j]
            for c in range(k + 1):
                root[j, c] -= factor * root[k, c]
        pivot = upper[j, j]
        for c in range(j + 1):
            root[j, c] /= pivot


@jit_inline
def solve_into(root: Matrix, vector: Vector, solution: Vector) -> None:
    """Fill ``solution`` with matrix^-1 vector, given the inverse root."""
    solution[:] = 0.0
    for j in range(root.shape[0]):
        value = 0.0
        for k in range(j + 1):
            value += root[j, k] * vector[k]
        for k in range(j + 1):
            solution[k] += root[j, k] * value


@jit
def solve_ridge(gram: Matrix, moment: Vector, lambda_: float) -> tuple[Vector, Matrix, float]:
    """Return theta, inverse root and ln det of lambda I + gram; ln det is NaN if the sum is not definite."""
    theta, root = np.empty_like(moment), np.empty_like(gram)
    log_det = solve_ridge_into(gram, moment, lambda_, np.empty_like(gram), root, theta)
    return theta, root, log_det


@jit_inline
def solve_ridge_into(gram: Matrix, moment: Vector, lambda_: float, upper: Matrix, root: Matrix, theta: Vector) -> float:
    """Fill upper factor and root of lambda I + gram, and theta; return ln det or NaN. ``upper`` may be ``gram``."""
    for i in range(moment.size):
        for j in range(moment.size):
            upper[i, j] = gram[i, j]
        upper[i, i] += lambda_
    factorise(upper)
    invert_root_into(upper, root)
    solve_into(root, moment, theta)
    return compute_log_det(upper)


@jit_inline
def compute_means_into(theta: Vector, columns: Features, mean: Vector) -> None:
    """Fill ``mean`` with <theta, x> of every item."""
    size, items = columns.shape
    mean[:] = 0.0
    for k in range(size):
        weight = theta[k]
        for i in range(items):
            mean[i] += weight * columns[k, i]


@jit
def compute_means(theta: Vector, columns: Features) -> Vector:
    """Compute <theta, x> of every item."""
    mean = np.empty(columns.shape[1])
    compute_means_into(theta, columns, mean)
    return mean


@jit
def compute_squared_widths(root: Matrix, columns: Features) -> Vector:
    """Compute x^T matrix^-1 x of every item."""
    total = np.empty(columns.shape[1])
    compute_squared_widths_into(root, columns, total, np.empty_like(total))
    return total


@jit_inline
def compute_squared_widths_into(root: Matrix, columns: Features, total: Vector, part: Vector) -> None:
    """Fill ``total`` with x^T matrix^-1 x of every item; ``part`` is scratch memory of the same size."""
    size, items = columns.shape
    total[:] = 0.0
    for j in range(size):
        part[:] = 0.0
        for k in range(j + 1):
            weight = root[j, k]
            for i in range(items):
                part[i] += weight * columns[k, i]
        for i in range(items):
            total[i] += part[i] * part[i]


@jit
def compute_ucb_scores(
    theta: Vector, root: Matrix, beta: float, columns: Features, own_root: Matrix | None = None
) -> Vector:
    """Compute U(i) = min(<theta, x> + beta ||x||, 1) of every item; with an ``own_root``, two norms are added."""
    score = np.empty(columns.shape[1])
    compute_ucb_scores_into(theta, root, own_root, beta, columns, score, np.empty((2, score.size)))
    return score


@jit_inline
def compute_ucb_scores_into(
    theta: Vector, root: Matrix, own_root: Matrix | None, beta: float, columns: Features, score: Vector, scratch: Matrix
) -> None:
    """Fill ``score`` with U(i) of every item; ``scratch`` has two rows of that size."""
    width = scratch[0]
    compute_means_into(theta, columns, score)
    compute_squared_widths_into(root, columns, width, scratch[1])
    for i in range(score.size):
        score[i] += beta * np.sqrt(width[i])
    if own_root is not None:
        compute_squared_widths_into(own_root, columns, width, scratch[1])
        for i in range(score.size):
            score[i] += beta * np.sqrt(width[i])
    for i in range(score.size):
        score[i] = min(score[i], 1.0)


@jit_inline
def add_examined(gram: Matrix, listed: Features, examined: int) -> None:
    """Add the first ``examined`` rows of ``listed`` to the gram, in order."""
    size = gram.shape[0]
    for position in range(examined):
        for i in range(size):
            value = np.float64(listed[position, i])
            for j in range(size):
                gram[i, j] += value * listed[position, j]


@jit_inline
def pack_sums(gram: Matrix, moment: Vector, row: Vector) -> None:
    """Write the upper triangle of a gram, and then a moment, into a row."""
    d, k = moment.size, 0
    for i in range(d):
        for j in range(i, d):
            row[k] = gram[i, j]
            k += 1
    for i in range(d):
        row[k + i] = moment[i]


@jit_inline
def unpack_sums(row: Vector, gram: Matrix, moment: Vector) -> None:
    """Fill a full gram and a moment from a row of ``pack_sums``."""
    d, k = moment.size, 0
    for i in range(d):
        for j in range(i, d):
            gram[i, j] = gram[j, i] = row[k]
            k += 1
    for i in range(d):
        moment[i] = row[k + i]


@jit_inline
def multiply(left: Vector, right: Vector) -> float:
    """Compute the inner product of two vectors, summed in order."""
    total = 0.0
    for k in range(left.size):
        total += left[k] * right[k]
    return total


@jit
def limit_length(vector: Vector) -> Vector:
    """Return the vector, scaled to length 1 if it is longer."""
    limited: Vector = vector / np.sqrt(max(multiply(vector, vector), 1.0))
    return limited


@jit
def normalise_rows(rows: Matrix) -> Matrix:
    """Return the rows, scaled to length 1."""
    units = rows.copy()
    for j in range(units.shape[0]):
        _normalise(units[j])
    return units


@jit_inline
def _normalise(vector: Vector) -> None:
    """Scale a vector to length 1, in place."""
    square = multiply(vector, vector)
    for k in range(vector.size):
        vector[k] /= np.sqrt(square)


@jit
def orthonormalise_rows(rows: Matrix) -> Matrix:
    """Orthonormalise rows by Gram-Schmidt, with two passes for full precision."""
    units = normalise_rows(rows)
    for j in range(units.shape[0]):
        for _ in range(2):
            for i in range(j):
                shared = 0.0
                for k in range(units.shape[1]):
                    shared += units[i, k] * units[j, k]
                for k in range(units.shape[1]):
                    units[j, k] -= shared * units[i, k]
        _normalise(units[j])
    return units


@jit_inline
def factorise_lanes(workspace: Vector, d: int) -> None:
    """Overwrite eight matrices with their upper factors U, as ``linear.factorise``, and the last column c with U^-T c.

    ``workspace`` holds matrices of shape (d, d + 1), interleaved, and a pivot of each.
    """
    row, pivot = (d + 1) * DOUBLES, d * (d + 1) * DOUBLES
    for k in range(d):
        top, diagonal = k * row, k * row + k * DOUBLES
        take_root(workspace, pivot, diagonal)
        for j in range(k, d):
            divide(workspace, top + j * DOUBLES, pivot)
        divide(workspace, top + d * DOUBLES, diagonal)
        for i in range(k + 1, d):
            for j in range(i, d + 1):
                subtract_product(workspace, i * row + j * DOUBLES, top + i * DOUBLES, top + j * DOUBLES)


@jit_inline
def measure_lane(lane: Vector, d: int) -> tuple[float, float]:
    """Return the squared length of a factorised lane's last column, and ln det of its matrix; ``lane`` is its slice."""
    square, log_det = 0.0, 0.0
    for k in range(d):
        solved = lane[(k * (d + 1) + d) * DOUBLES]
        square += solved * solved
        log_det += log(lane[k * (d + 2) * DOUBLES])
    return square, 2.0 * log_det
