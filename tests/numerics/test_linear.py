"""A factorisation that carries a column along gives the bits of the two steps that it stands for."""

import numpy as np
import pytest

from fedcascade.numerics import linear


@pytest.mark.parametrize("size", [1, 2, 5, 20, 33])
def test_a_column_is_solved_while_the_matrix_is_factorised(size: int) -> None:
    random = np.random.default_rng(size)
    items, column = random.normal(size=(2 * size, size)), random.normal(size=size)
    gram = items.T @ items
    room = np.concatenate((np.triu(gram + 0.5 * np.eye(size)), column[:, None]), axis=1)
    linear.factorise_with_column(room)
    upper = linear.factorise_shifted((gram + gram.T) / 2, 0.5)
    assert np.array_equal(np.triu(room[:, :size]), np.triu(upper))
    assert float(np.cumsum(room[:, size] ** 2)[-1]) == linear.compute_leverage(upper, column)
