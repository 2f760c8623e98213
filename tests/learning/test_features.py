"""Rows that an agent takes, from numbers of any size."""

import numpy as np
import pytest

import fedcascade


def test_an_item_has_the_same_row_whatever_is_beside_it() -> None:
    rows = np.random.default_rng(2).normal(size=(5, 3))
    np.testing.assert_array_equal(fedcascade.normalise(rows)[2:3], fedcascade.normalise(rows[2:3]))
    assert fedcascade.normalise(np.zeros((2, 3))).tolist() == [[0.0] * 3] * 2
    assert fedcascade.normalise(np.empty((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("bad", [[1.0, 2.0], [[np.nan, 1.0]], [[np.inf, 1.0]]])
def test_what_is_no_row_of_numbers_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="features must"):
        fedcascade.normalise(bad)  # type: ignore[arg-type]
