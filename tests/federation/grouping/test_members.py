"""Circles and labels against sets."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcascade.federation.grouping.members import Circles


def walk(circles: Circles, member: int) -> list[int]:
    """The circle of an agent; both directions must agree."""
    agents = [member]
    while (agent := int(circles.after[agents[-1]])) != member:
        assert circles.before[agent] == agents[-1]
        agents.append(agent)
    return agents


@settings(deadline=None, max_examples=60)
@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_circles_are_the_groups_of_equal_labels(labels: list[int]) -> None:
    circles = Circles(np.array(labels))
    for agent, label in enumerate(labels):
        assert sorted(walk(circles, agent)) == [other for other, same in enumerate(labels) if same == label]


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_agents_leave_circles_and_circles_join(steps: list[tuple[int, int]]) -> None:
    circles, groups = Circles(np.arange(8)), [{agent} for agent in range(8)]
    for agent, member in steps:
        if groups[agent] is groups[member]:
            circles.detach(agent)
            groups[agent].discard(agent)
            groups[agent] = {agent}
        else:
            circles.connect(agent, member)
            groups[agent] |= groups[member]
            for other in groups[member].copy():
                groups[other] = groups[agent]
        circles.label(member, 9)
        assert np.flatnonzero(circles.labels == 9).tolist() == sorted(groups[member])
        circles.label(member, member)
        assert all(set(walk(circles, each)) == groups[each] for each in range(8))


def test_the_smallest_unused_label_comes_first_and_labels_never_run_out() -> None:
    circles = Circles(np.array([0, 2, 2]))
    assert [circles.take_label() for _ in range(3)] == [1, 3, 4]
    circles.return_label(3)
    circles.join()
    assert circles.labels.tolist() == [0, 2, 2, 3]
    assert circles.take_label() == 5


@settings(deadline=None, max_examples=60)
@given(steps=st.lists(st.one_of(st.none(), st.integers(0, 99)), max_size=60))
def test_labels_come_out_in_order(steps: list[int | None]) -> None:
    circles, waiting = Circles(np.array([0])), [1]
    for step in steps:
        if step is not None and step not in waiting:
            circles.return_label(step)
            waiting.append(step)
        elif waiting:
            assert circles.take_label() == min(waiting)
            waiting.remove(min(waiting))
