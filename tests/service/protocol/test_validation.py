"""Uploads that data can produce pass the server's checks."""

import numpy as np
import pytest

from fedcascade.learning.cascade import examine
from fedcascade.learning.discounts import PositionDiscounts
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.protocol.validation import check_upload

from ...learning.test_statistics import rows


@pytest.mark.parametrize("discount", [1.0, 0.9])
def test_several_clicks_add_what_was_examined_once_and_every_click(discount: float) -> None:
    listed = round_to_grid(rows(5, 6, 3))
    gammas = None if discount == 1.0 else PositionDiscounts(discount=discount).compute_gammas(6)
    seen = Statistics.zero(3).observe(listed, examine(6, [1, 3], looked_until=4), gammas)
    weights = np.ones(6) if gammas is None else gammas
    discounted = round_to_grid(weights[:5, None] * listed[:5].astype(np.float64)).astype(np.float64)
    rewards = np.array([0.0, 1.0, 0.0, 1.0, 0.0]) * weights[:5]
    np.testing.assert_array_equal(seen.gram, discounted.T @ discounted)
    np.testing.assert_array_equal(seen.moment, discounted.T @ rewards)
    assert (seen.count, seen.clicks, seen.rounds) == (5, 2, 2)
    if gammas is None:  # no server runs a policy with discounts
        check_upload(seen, 3)
