"""Priors at enrolment are published: no single upload, deletion or repeated read changes what a newcomer is sent."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES, guard_policy
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.numerics.grid import round_to_grid
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import create_token
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server import operations
from fedcascade.service.server.publication import DAY, STEP, load_publication, round_prior
from fedcascade.service.server.state import ServerState, replay_log
from fedcascade.service.store.contract import Store, add_agent
from fedcascade.service.store.open import open_store

D, NEEDED = 3, 6
POLICY = guard_policy(POLICIES["population"])
Prior = wire.PriorMessage | None


class Site:
    """A store with its state, a clock, and agents that upload."""

    def __init__(self, store: Store) -> None:
        self.store, self.now, self.nonce = store, 1e9, 0
        with store.transaction():
            self.state = replay_log(store, POLICY, D)
        self.random = np.random.default_rng(5)
        self.agents = [self._add() for _ in range(9)]
        self.sequences = dict.fromkeys(self.agents, 0)

    def _add(self) -> int:
        with self.store.transaction():
            return add_agent(self.store, self.random.bytes(32), self.now)

    def upload(self, place: int) -> None:
        agent = self.agents[place % len(self.agents)]
        self.sequences[agent] += 1
        total = Statistics.zero(D)
        for row in round_to_grid(self.random.normal(size=(12, D)) / 4):
            total = total.observe(row[None], 0 if row[agent % D] > 0 else None)
        upload = Upload(agent=agent, sequence=self.sequences[agent], cause=Cause.FORCED, statistics=total)
        with self.store.transaction():
            self.state.apply(upload, self.state.position + 1)
            self.store.append(self.state.position, upload)
            self.state.publish_prior(self.store, self.now)

    def forget(self, place: int) -> None:
        agent = self.agents.pop(place % len(self.agents))
        with self.store.transaction():
            operations.forget(agent, now=self.now)(self.store, self.state)
        self.agents.append(self._add())
        self.sequences[self.agents[-1]] = 0

    def create_token(self) -> str:
        token = create_token()
        with self.store.transaction():
            operations.add_tokens([token], self.now + 10 * DAY)(self.store, self.state)
        return token

    def enrol(self, token: str, key: SigningKey | None = None) -> Prior:
        key = key or SigningKey.generate()
        message = wire.Enrolment(
            protocol=2, public_key=bytes(key.verify_key), created=0, proof=bytes(64), token=token
        )  # fmt: skip
        with self.store.transaction():
            _, prior = operations.enrol(message, self.now, with_prior=True)(self.store, self.state)
        return prior

    def read(self) -> Prior:
        return self.enrol(self.create_token())


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield Site(store)
    store.close()


def test_nothing_is_published_of_fewer_than_six_agents(site: Site) -> None:
    for place in range(NEEDED - 1):
        for _ in range(5):
            site.upload(place)
        assert site.read() is None
    site.upload(NEEDED - 1)
    assert site.read() is not None


ACTIONS = st.one_of(
    st.tuples(st.just("upload"), st.integers(0, 8)),
    st.tuples(st.just("upload"), st.integers(0, 8)),
    st.tuples(st.just("forget"), st.integers(0, 8)),
    st.tuples(st.just("wait"), st.integers(1, 30)),
    st.tuples(st.just("restart"), st.just(0)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(ACTIONS, max_size=60))
def test_two_different_priors_have_uploads_of_six_agents_between_them(actions: list[tuple[str, int]]) -> None:
    """The claim of the threat model, for any order of uploads, deletions, restarts and reads."""
    folder = tempfile.TemporaryDirectory()
    store = open_store(f"sqlite:///{folder.name}/store.db")
    site = Site(store)
    for place in range(NEEDED):
        site.upload(place)
    before, uploaded, forgotten_at = site.read(), set[int](), None
    assert before is not None
    for action, value in actions:
        if action == "upload":
            site.upload(value)
            uploaded.add(site.agents[value % len(site.agents)])
        elif action == "forget":
            gone = site.agents[value % len(site.agents)]
            forgotten_at = site.now if forgotten_at is None and gone in site.state.places else forgotten_at
            site.forget(value)
            uploaded.discard(gone)
        elif action == "wait":
            site.now += 3_600.0 * value
        else:
            with store.transaction():
                site.state = replay_log(store, POLICY, D)
        after = site.read()
        if after is not None and after != before:
            assert len(uploaded) >= NEEDED
            before, uploaded, forgotten_at = after, set(), None
        if forgotten_at is not None and site.now >= forgotten_at + DAY:
            assert after is None  # the forgotten agent's influence has ended
    store.close()
    folder.cleanup()


def test_a_token_gets_one_prior(site: Site) -> None:
    for place in range(9):
        site.upload(place)
    token, key = site.create_token(), SigningKey.generate()
    first = site.enrol(token, key)
    assert first is not None
    assert site.enrol(token, key) == first  # the reply was lost
    for place in 4 * list(range(9)):
        site.upload(place)
    assert site.read() not in (None, first)
    assert site.enrol(token, key) is None
    with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
        site.enrol(token)  # another key
    unused = site.create_token()
    site.now += 11 * DAY
    with pytest.raises(Refused, match=r"enrolment token is (unknown|used|expired)"):
        site.enrol(unused, key)


def test_a_forgotten_agent_is_in_no_prior_after_a_day(site: Site) -> None:
    for place in range(NEEDED):
        site.upload(place)
    before = site.read()
    site.forget(0)
    assert site.read() == before
    site.now += DAY
    assert site.read() is None
    for place in range(NEEDED - 1):
        site.upload(place)
    assert site.read() is None
    site.upload(NEEDED - 1)
    assert site.read() not in (None, before)


def test_a_publication_outlives_the_process_and_all_servers_send_the_same(site: Site) -> None:
    for place in range(9):
        site.upload(place)
    published = site.state.publication
    other = ServerState(POLICY, D)
    with site.store.transaction():
        other = replay_log(site.store, POLICY, D, other)
        assert load_publication(site.store) == published == replay_log(site.store, POLICY, D).publication
    site.state = other  # a server that has not seen the publication, and does not publish over it
    site.now += DAY
    assert site.read() == published.prior
    assert load_publication(site.store) == site.state.publication == published


@given(st.integers(0, 10_000), st.integers(1, 8), st.floats(0.001, 3.0))
@settings(max_examples=60, deadline=None)
def test_a_rounded_prior_is_a_prior_near_the_exact_one(seed: int, d: int, scale: float) -> None:
    random = np.random.default_rng(seed)
    root = random.normal(size=(d, d)) * scale
    covariance = root @ root.T + 1e-6 * np.eye(d)
    mean, lambda_ = random.normal(size=d), 0.01
    precision = 0.25 * np.linalg.inv(covariance)
    precision = (precision + precision.T) / 2
    exact = Statistics(precision - lambda_ * np.eye(d), precision @ mean, 0, 0, 0)
    rounded = round_prior(exact, lambda_)
    theta = Ridge(rounded, lambda_).theta  # raises if it is no prior
    assert np.abs(theta - mean).max() <= STEP
    steps = np.linalg.cholesky(0.25 * np.linalg.inv(rounded.gram + lambda_ * np.eye(d))) / STEP
    assert np.allclose(steps, np.round(steps), atol=1e-3 * np.abs(steps).max())
