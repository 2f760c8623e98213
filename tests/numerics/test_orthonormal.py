"""Gram and Schmidt's rows are orthonormal to full precision, span what they should, and keep their bits."""

import hashlib

import numpy as np
import pytest

from fedcascade.numerics import streams
from fedcascade.numerics.linear import normalise_rows, orthonormalise_rows


@pytest.mark.parametrize(("count", "size"), [(1, 2), (3, 3), (10, 19), (40, 40)])
def test_rows_are_those_of_the_qr_factorisation(count: int, size: int) -> None:
    rows = np.random.default_rng(size).normal(size=(count, size))
    units = orthonormalise_rows(rows)
    np.testing.assert_allclose(units @ units.T, np.eye(count), atol=1e-14)
    expected = np.linalg.qr(rows.T).Q.T
    expected *= np.sign(np.sum(expected * units, axis=1, keepdims=True))
    np.testing.assert_allclose(units, expected, atol=1e-12)


def test_rows_that_are_nearly_alike_still_come_out_orthogonal() -> None:
    rows = np.ones((3, 5)) + 1e-7 * np.random.default_rng(0).normal(size=(3, 5))
    units = orthonormalise_rows(rows)
    np.testing.assert_allclose(units @ units.T, np.eye(3), atol=1e-14)


def test_rows_become_units() -> None:
    np.testing.assert_array_equal(normalise_rows(np.array([[3.0, 4.0], [0.0, -2.0]])), [[0.6, 0.8], [0.0, -1.0]])


def test_the_bits_are_pinned() -> None:
    """If this fails, the arithmetic has changed, and with it every published run."""
    rows = np.ascontiguousarray(streams.draw_normals(0, streams.THETA, 0, (19, 10)).T)
    content = orthonormalise_rows(rows).astype("<f8").tobytes()
    assert hashlib.sha256(content).hexdigest() == "4e2a0a7fc38b6065c7a3f8817fe9a0c67de0a9b811ba35ed21e73deee9361c88"
