"""Items as a thread of a GPU draws them, run on the processor."""

from typing import Literal

import numpy as np
import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade_cuda.items import draw_item, make_tie_key


@pytest.mark.parametrize(("d", "lifted"), [(2, True), (5, False), (20, True), (21, True), (64, False)])
def test_an_item_drawn_alone_has_the_bits_of_one_drawn_among_others(d: int, lifted: bool) -> None:
    features: Literal["lifted", "gaussian"] = "lifted" if lifted else "gaussian"
    among = Synthetic(users=1, clusters=1, dimension=d, items=50, features=features, seed=7).items(3)
    alone = np.empty((d, 1), np.float32)
    for item in range(50):
        draw_item(np.uint64(7), 3, item, lifted, alone)
        np.testing.assert_array_equal(alone[:, 0].view(np.uint32), among[item].copy().view(np.uint32))


def test_ties_go_by_the_larger_word_and_then_by_the_lower_index() -> None:
    keys = [make_tie_key(np.uint32(tie), item) for tie, item in [(0, 1), (0, 0), (1, 9), (2**32 - 1, 3)]]
    assert keys == sorted(keys)
