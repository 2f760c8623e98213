"""One run of the sampler, between the groups that are kept and the columns of a table that it changes."""

import numpy as np
from numpy.typing import NDArray

from fedcascade.federation.grouping.gibbs import (
    Crowd,
    GroupTable,
    Indices,
    Model,
    estimate_theta,
    make_memory,
    sample_partitions,
)
from fedcascade.federation.grouping.listing import Listing
from fedcascade.federation.grouping.members import Circles, Labels
from fedcascade.federation.grouping.rows import Row, Rows

NOBODY = -1


class Sampling:
    """Groups in the columns of a table: those of ``places``, then visited agents that are alone, then free ones."""

    def __init__(
        self,
        circles: Circles,
        listing: Listing,
        places: NDArray[np.intp],
        visited: Labels,
        people: Indices,
        rows: Rows,
        alone: Row,
    ) -> None:
        self._people = people
        self._circles, self._listing, self._places = circles, listing, places
        self._visited, self._rows, self._alone = visited.tolist(), rows, alone
        labels = circles.labels[visited].tolist()
        single = [i for i, label in enumerate(labels) if label not in listing.place_of]
        self._labels: list[int] = listing.labels[places].tolist() + [labels[i] for i in single]
        self._member: list[int] = listing.members[places].tolist() + [self._visited[i] for i in single]
        column_of = {label: column for column, label in enumerate(self._labels)}
        self._assignment = np.array([column_of[label] for label in labels])
        self._before = self._assignment.copy()
        self._table = self._make_table(single)

    @property
    def singles(self) -> int:
        """How many visited agents are in no group of the listing."""
        return len(self._labels) - self._places.size

    def _make_table(self, single: list[int]) -> GroupTable:
        listed, count = self._places.size, len(self._labels)
        capacity = count + len(self._visited) + 1
        sums, evidence = np.zeros((capacity, self._rows.shape[1])), np.zeros(capacity)
        size, people, version = (np.zeros(capacity, np.int64) for _ in range(3))
        sums[:listed], sums[listed:count] = self._listing.sums[self._places], self._rows[single]
        evidence[:listed], evidence[listed:count] = self._listing.evidence[self._places], self._alone[single]
        size[:listed], size[listed:count] = self._listing.sizes[self._places], 1
        people[:listed], people[listed:count] = self._listing.people[self._places], self._people[single]
        version[:count] = np.arange(1, count + 1)
        return GroupTable(sums, evidence, size, people, version, np.full(1, count), make_memory(self._rows[0]))

    def run(self, draws: Row, model: Model, crowd: Crowd, considered: int, told: int) -> Row:
        """Sample, and keep what was sampled; returns the expected sum of the others in the asker's group.

        Of more listed groups than ``considered``, an agent looks at so many.
        """
        chosen = self._places if self._places.size > considered else self._places[:0]
        thetas = np.ascontiguousarray(self._listing.thetas[chosen].T)
        expected, is_moved, merges = sample_partitions(
            self._rows,
            self._alone,
            self._people,
            self._assignment,
            self._table,
            thetas,
            draws,
            model,
            crowd,
            considered,
            told,
        )
        if is_moved.any() or merges.size:
            self._regroup(np.flatnonzero(is_moved).tolist(), merges)
        return expected

    def _regroup(self, moved: list[int], merges: Indices) -> None:
        """Change circles and labels: first those who moved leave, then groups are merged, then they join."""
        circles, fresh = self._circles, self._table.size.size - len(self._labels)
        self._labels += [circles.take_label() for _ in range(fresh)]
        self._member += [NOBODY] * fresh
        for i in moved:
            agent, column = self._visited[i], int(self._before[i])
            remaining = circles.detach(agent)
            if self._member[column] == agent:
                self._member[column] = NOBODY if remaining == agent else remaining
        for group, target, is_larger in merges.tolist():
            self._merge(group, target, bool(is_larger))
        for i in moved:
            agent, column = self._visited[i], int(self._assignment[i])
            circles.labels[agent] = self._labels[column]
            if self._member[column] == NOBODY:
                self._member[column] = agent
            else:
                circles.connect(agent, self._member[column])

    def _merge(self, group: int, target: int, is_larger: bool) -> None:
        """Let a group join another; the larger of the two keeps its label, so that few agents get another one."""
        circles, member, labels = self._circles, self._member, self._labels
        if is_larger:
            labels[group], labels[target] = labels[target], labels[group]
        renamed = target if is_larger else group
        if member[renamed] != NOBODY:
            circles.label(member[renamed], labels[target])
        if member[group] != NOBODY and member[target] != NOBODY:
            circles.connect(member[group], member[target])
        elif member[group] != NOBODY:
            member[target] = member[group]
        member[group] = NOBODY

    def write_back(self, age: int, model: Model) -> None:
        """Bring the listing up to date with the table."""
        listing, listed, sizes = self._listing, self._places.size, self._table.size.tolist()
        changed = np.flatnonzero(self._table.version[:listed] != np.arange(1, listed + 1)).tolist()
        emptied = [column for column in range(listed) if sizes[column] == 0]
        for column in {*changed, *emptied}:  # before any label is given to another place
            listing.close_place(int(self._places[column]))
        founded = [column for column in range(listed, len(self._labels)) if sizes[column] > 0]
        for column in changed + founded:
            if sizes[column] == 0:
                continue
            place = int(self._places[column]) if column < listed else listing.find_free_place()
            began = int(listing.ages[place]) if column < listed else age
            listing.open_place(place, self._labels[column], began)
            listing.sizes[place], listing.members[place] = sizes[column], self._member[column]
            listing.people[place] = self._table.people[column]
            listing.sums[place], listing.evidence[place] = self._table.sums[column], self._table.evidence[column]
            listing.thetas[place] = estimate_theta(listing.sums[place], model)
        for column, label in enumerate(self._labels):
            if sizes[column] == 0:
                self._circles.return_label(label)
