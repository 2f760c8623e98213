"""The groups that agents may join: a short list, with the sum of each group's rows and what follows from it."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.gibbs import Model, estimate_theta, measure_row
from fedcascade.federation.grouping.members import NO_LABEL, Labels
from fedcascade.federation.grouping.rows import compute_width

LISTED = 128  # groups; of more, the smallest are taken off the list


class Listing:
    """Groups by place: label, age, size, a member, sum of the rows, E of the sum, and the estimate from it.

    ``people`` are the members that are agents, and not former selves of some. An agent whose group is not listed
    is alone. Labels and ages outlive a process; the rest follows from them and from what the server holds.
    """

    def __init__(self, labels: Labels, ages: Labels, dimension: int) -> None:
        self.labels, self.ages, places = labels, ages, labels.size
        self.sizes, self.people, self.members = (np.zeros(places, np.int64) for _ in range(3))
        self.sums, self.evidence = np.zeros((places, compute_width(dimension))), np.zeros(places)
        self.thetas = np.zeros((places, dimension))
        self.place_of = {int(labels[place]): place for place in self.find_places().tolist()}

    @property
    def agents(self) -> int:
        """How many agents are in a group that is listed."""
        return int(self.sizes.sum())

    def find_places(self) -> NDArray[np.intp]:
        """The places that have a group, in order."""
        return np.flatnonzero(self.labels != NO_LABEL)

    def find_free_place(self) -> int:
        """The first place without a group."""
        return int(np.argmax(self.labels == NO_LABEL))

    def open_place(self, place: int, label: int, age: int) -> None:
        """Give a place to a group."""
        self.labels[place], self.ages[place], self.place_of[label] = label, age, place

    def close_place(self, place: int) -> None:
        """Take a group off the list."""
        del self.place_of[int(self.labels[place])]
        self.labels[place], self.sizes[place], self.people[place] = NO_LABEL, 0, 0

    def lose_member(self, place: int, member: int, neighbour: int, *, is_person: bool) -> None:
        """Note that a group has a member less, whose data are not in its sum; ``neighbour`` is another one, if any."""
        if neighbour == member:
            self.close_place(place)
            return
        self.sizes[place] -= 1
        self.people[place] -= is_person
        if self.members[place] == member:
            self.members[place] = neighbour

    def fit(self, place: int, model: Model) -> None:
        """Compute E and the estimate of a group whose sum has changed."""
        self.evidence[place] = measure_row(self.sums[place], model)
        self.thetas[place] = estimate_theta(self.sums[place], model)

    def find_superfluous(self) -> int | None:
        """The place of the smallest group, of equals the oldest, if there are more groups than the list is to have."""
        if len(self.place_of) <= LISTED:
            return None
        places = self.find_places()
        return int(places[np.lexsort((self.ages[places], self.sizes[places]))[0]])
