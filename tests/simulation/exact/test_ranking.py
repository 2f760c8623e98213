"""The filter's floors let every item of a list through, and nothing that is not on the shelf."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade import POLICIES, Synthetic, TopK, simulate
from fedcascade.simulation.exact import screening


@settings(deadline=None, max_examples=120)  # the first example compiles
@given(
    items=st.integers(1, 150),
    most=st.integers(0, 90),
    length=st.integers(1, 20),
    d=st.integers(2, 40),
    different=st.integers(1, 40),
    beta=st.sampled_from([0.0, 0.01, 0.5]),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_list_of_the_best_reaches_the_floor(
    items: int, most: int, length: int, d: int, different: int, beta: float, seed: int
) -> None:
    """Also where many items are the same, and where a longer round left its numbers in the room."""
    rng = np.random.default_rng(seed)
    scratch, length = screening.make_scratch(d, items + most, length), min(length, items)
    kinds = rng.standard_normal((d, different))
    kinds = (kinds / np.linalg.norm(kinds, axis=0)).astype(np.float32)
    scratch.columns[:d] = kinds[:, rng.integers(different, size=scratch.columns.shape[1])]
    scratch.true_theta[:d] = rng.standard_normal(d)
    theta, root = rng.standard_normal(d), np.tril(rng.standard_normal((d, d)))
    margin = screening.load_decision(theta, root, beta, scratch)
    screening.screen_items(items + most, length, beta, scratch)
    screening.screen_items(items, length, beta, scratch)
    for row, place in ((scratch.score, screening.SCORE), (scratch.true_mean, screening.TRUTH)):
        reached = scratch.reached[place]
        assert (row[:items] >= reached).sum() >= length
        count = screening.collect_reaching(row, items, reached, scratch.candidates)
        assert set(np.flatnonzero(row[:items] >= reached)) <= set(scratch.candidates[:count]) <= set(range(items))

    columns = scratch.columns[:d, :items].astype(np.float64)
    scores = theta @ columns + beta * np.linalg.norm(root @ columns, axis=0)
    floor = min(scratch.reached[screening.SCORE], 1.0) - 2.0 * margin
    candidates = scratch.score[:items] >= floor
    assert not (candidates ^ (scores >= floor))[np.abs(scores - floor) > margin].any()
    np.testing.assert_allclose(scratch.score[:items][candidates], scores[candidates], atol=margin)
    widths = np.linalg.norm(root @ columns, axis=0)[candidates]
    np.testing.assert_allclose(np.sqrt(scratch.squared_width[:items][candidates]), widths, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("length", [17, 40, 64])
def test_lists_longer_than_lanes(length: int) -> None:
    world = Synthetic(users=3, clusters=1, dimension=4, items=(50, 70), seed=5)
    traces = [
        simulate(world, POLICIES["fedc3ucb-h"], rounds=150, oracle=TopK(length=length), engine=engine, keep_lists=True)
        for engine in ("exact", "reference")
    ]
    np.testing.assert_array_equal(traces[0].lists, traces[1].lists)
    assert traces[0].regret == traces[1].regret
