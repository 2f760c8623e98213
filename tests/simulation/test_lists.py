"""The filter's floors let every item of a list through, and nothing that is not on the shelf."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade import POLICIES, Synthetic, TopK, simulate
from fedcascade.simulation import filters


@settings(deadline=None, max_examples=80)  # the first example compiles
@given(
    items=st.integers(1, 150),
    most=st.integers(0, 90),
    length=st.integers(1, 20),
    d=st.integers(2, 9),
    different=st.integers(1, 40),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_list_of_the_best_reaches_the_floor(items, most, length, d, different, seed) -> None:
    """Also where many items are the same, and where a longer round left its numbers in the room."""
    rng = np.random.default_rng(seed)
    scratch, length = filters.make_scratch(d, items + most, length), min(length, items)
    kinds = rng.standard_normal((d, different)).astype(np.float32)
    scratch.columns[:d] = kinds[:, rng.integers(different, size=scratch.columns.shape[1])]
    scratch.true_theta[:d] = rng.standard_normal(d)
    margin = filters.load(rng.standard_normal(d), np.tril(rng.standard_normal((d, d))), 0.5, np.inf, scratch)
    filters.filter_items(items + most, length, 0.5, margin, scratch)
    filters.filter_items(items, length, 0.5, margin, scratch)
    for row, place in ((scratch.score, filters.SCORE), (scratch.truth, filters.TRUTH)):
        reached = scratch.reached[place]
        assert (row[:items] >= reached).sum() >= length
        found = filters.reaching(row, items, reached, scratch.candidates)
        assert set(np.flatnonzero(row[:items] >= reached)) <= set(scratch.candidates[:found]) <= set(range(items))


@pytest.mark.parametrize("length", [17, 40, 64])
def test_lists_longer_than_lanes(length: int) -> None:
    world = Synthetic(users=3, clusters=1, dimension=4, items=(50, 70), seed=5)
    traces = [
        simulate(world, POLICIES["fedc3ucb-h"], rounds=150, oracle=TopK(length=length), engine=engine, keep_lists=True)
        for engine in ("exact", "reference")
    ]
    np.testing.assert_array_equal(traces[0].lists, traces[1].lists)
    assert traces[0].regret == traces[1].regret
