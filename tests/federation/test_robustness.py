"""Many observations in many dimensions: logarithms of determinants, no inverse of what can be singular."""

import numpy as np
import pytest

from fedcascade.federation.agent import Agent
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.server import Server
from fedcascade.federation.triggers import Determinant, Occasion, Ratio, SyncBudget
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.oracles import TopK
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics

D, MANY = 64, 10_000_000
PROBLEM = ProblemSize(users=2, dimension=D, list_length=4, rounds=MANY)

# Four items in new directions teach nothing beside ten million observations in all directions, and beside those of one
# item as much as the regularisation lets them. The triggers are Determinant, Ratio, and a SyncBudget out of reach.
CAUSES: dict[tuple[str, float], list[Cause | None]] = {
    ("round", 0.1): [None, None, None],
    ("round", 4.0): [None, None, None],
    ("rank 1", 0.1): [Cause.DETERMINANT, Cause.DETERMINANT, None],
    ("rank 1", 4.0): [Cause.DETERMINANT, None, None],
}


def many(kind: str) -> Statistics:
    """Ten million observations: in all directions, or all of one item, whose gram has rank 1."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(D if kind == "round" else 1, D))
    x = np.linalg.qr(x).Q if kind == "round" else x / np.linalg.norm(x)
    gram = x.T @ x * (MANY / len(x))
    moment = x.sum(axis=0) * (MANY / len(x) / 2)
    return Statistics((gram + gram.T) / 2, moment, MANY, MANY // 2, MANY)


@pytest.mark.parametrize("kind", ["round", "rank 1"])
@pytest.mark.parametrize("lambda_", [0.1, 4.0])
def test_estimates_and_triggers_stay_finite(kind: str, lambda_: float) -> None:
    seen = many(kind)
    ridge = Ridge(seen, lambda_)
    sign, expected = np.linalg.slogdet(seen.gram + lambda_ * np.eye(D))
    assert sign == 1
    assert ridge.log_det == pytest.approx(expected, rel=1e-9)
    assert np.isfinite(ridge.theta).all()
    assert np.linalg.norm(ridge.theta) < 100
    x = np.eye(D, dtype=np.float32)
    assert np.isfinite(ridge.scores(x, 5.0)).all()
    buffer = Statistics.zero(D).observe(x[:4], None)
    inverse = np.linalg.inv(seen.gram + lambda_ * np.eye(D))
    growth = np.linalg.slogdet(np.eye(4) + x[:4] @ inverse @ x[:4].T)[1]  # by the matrix determinant lemma
    assert ridge.growth(buffer) == pytest.approx(growth, rel=1e-6, abs=1e-9)
    occasion = Occasion(round=MANY, draw=0.5, arrivals=MANY, download=ridge, buffer=buffer)
    causes = [trigger.cause(occasion) for trigger in (Determinant(), Ratio(), SyncBudget(budget=1e9))]
    assert causes == CAUSES[kind, lambda_]


def test_the_determinant_itself_would_overflow() -> None:
    assert Ridge(many("round"), 4.0).log_det > np.log(np.finfo(float).max)


@pytest.mark.parametrize("kind", ["round", "rank 1"])
@pytest.mark.parametrize("name", POLICIES)
def test_every_system_survives_ten_million_observations(name: str, kind: str) -> None:
    policy = POLICIES[name].fit_to(PROBLEM)
    server = Server(policy=policy, agents=2, dimension=D, truth=np.array([0, 1]))
    agent = Agent(id=1, policy=policy, problem=PROBLEM, oracle=TopK(length=4))
    seen = many(kind)
    downloads = server.receive(Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=seen))
    for answered, statistics in (*downloads, *server.answer_arrival(1)):
        if answered == 1:
            agent.receive(statistics)
    agent.receive(seen)
    x = np.random.default_rng(1).normal(size=(20, D))
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    for t in range(1, 4):
        shown = agent.recommend(x, np.arange(20, dtype=np.uint32))
        upload = agent.observe(shown, 1, round_=MANY + t, draw=0.5)
        if upload is not None:
            server.receive(upload)
    assert np.isfinite(agent.state.decision.theta).all()
    assert np.isfinite(agent.beta)
    assert np.isfinite(server.holdings.theta).all()
