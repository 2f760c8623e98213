"""Poisoning by an enrolled agent: impossible counts, indefinite grams, huge weights."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from attack.arena import Arena, ServerProcess, take_over_with
from attack.peers import Peer, connect_agent, draw_features, play_rounds, teach
from attack.registry import Finding, attack
from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.pool import RemoteAgent


def make_indefinite(eigenvalue: float, trace: float, dimension: int) -> Statistics:
    """Make statistics on the grid whose gram has a negative eigenvalue, hidden by a large trace."""
    gram = np.diag([trace / (dimension - 1)] * (dimension - 1) + [eigenvalue])
    gram = np.round(gram * 2**24) / 2**24
    count = int(np.trace(gram)) + 1_000
    return Statistics(gram, np.zeros(dimension), count, 0, count)


def find_honest_trouble(arena: Arena, server: ServerProcess, name: str = "honest.db") -> str | None:
    """Return why an honest agent is not answered; None if it is."""
    agent = connect_agent(server, str(Path(arena.folder) / name))
    try:
        teach(agent, 1)
        return None if agent.flush(15.0) else f"waits: {agent.trouble}"
    finally:
        agent.close()


def find_restart_trouble(server: ServerProcess, *options: str) -> str | None:
    """Return why a server does not restart with other constants; None if it does."""
    server.stop()
    server.options += take_over_with(*options)
    try:
        server.start()
    except RuntimeError:
        return "does not start"
    return None


def report_poisoning(statuses: list[int], trouble: str | None) -> Finding:
    """Require that every upload was refused with 4xx, and that honest agents are answered."""
    counted = ", ".join(f"{statuses.count(status)} x {status}" for status in sorted(set(statuses)))
    held = trouble is None and all(400 <= status < 500 for status in statuses)
    return Finding(f"{counted}; others: {trouble or 'fine'}", held)


@attack(1, "impossible counts", sends="count = rounds = 2^40, gram zero", holds="refused; others are answered")
def claim_everything(arena: Arena) -> Finding:
    server = arena.serve()
    uploads = [Statistics(np.zeros((3, 3)), np.zeros(3), 2**40, 0, 2**40) for _ in range(2)]
    statuses = [Peer(server).upload(upload).status_code for upload in uploads]
    return report_poisoning(statuses, find_honest_trouble(arena, server))


@attack(
    2, "indefinite gram, -9000", sends="a gram hidden behind a trace of 10^12", holds="refused; others are answered"
)
def hide_large_eigenvalue(arena: Arena) -> Finding:
    server = arena.serve()
    status = Peer(server).upload(make_indefinite(-9_000.0, 1.09e12, 3)).status_code
    return report_poisoning([status], find_honest_trouble(arena, server))


@attack(
    2, "indefinite gram, -100", sends="a gram that the check takes and the fold does not", holds="refused, never 500"
)
def break_the_fold(arena: Arena) -> Finding:
    server = arena.serve()
    peer = Peer(server)
    statuses = [peer.upload(make_indefinite(-100.0, 2e10, 3)).status_code for _ in range(20)]
    return report_poisoning(statuses, find_honest_trouble(arena, server))


@attack(
    2, "indefinite gram, then --lambda 1", sends="one upload, then a documented restart", holds="refused; it starts"
)
def poison_restart(arena: Arena) -> Finding:
    server = arena.serve()
    status = Peer(server).upload(make_indefinite(-3.9, 8e8, 3)).status_code
    return report_poisoning([status], find_restart_trouble(server, "--lambda", "1"))


@attack(
    2, "indefinite grams of six agents", sends="one upload each of six agents", holds="refused; others are answered"
)
def poison_pool(arena: Arena) -> Finding:
    server = arena.serve()
    statuses = [Peer(server).upload(make_indefinite(-3.9, 8e8, 3)).status_code for _ in range(6)]
    return report_poisoning(statuses, find_honest_trouble(arena, server))


@attack(
    2, "indefinite sum of 421 uploads", sends="-0.0099 in each, -4.2 in their sum", holds="refused; --lambda 1 starts"
)
def add_up(arena: Arena) -> Finding:
    server = arena.serve()
    peer = Peer(server)
    statuses = [peer.upload(make_indefinite(-0.0099, 1e6, 3)).status_code for _ in range(421)]
    return report_poisoning(statuses, find_restart_trouble(server, "--lambda", "1"))


@attack(12, "NaN likelihood", sends="eigenvalue -2 at d = 3 under population", holds="refused; answers are finite")
def make_evidence_nan(arena: Arena) -> Finding:
    server = arena.serve("--policy", "population")
    status = Peer(server).upload(make_indefinite(-2.0, 8e8, 3)).status_code
    honest = Peer(server)
    reply = honest.upload(play_rounds(np.random.default_rng(1), np.array([0.5, 0.3, 0.1]), 50))
    finite = reply.status_code == 200 and bool(np.isfinite(honest.decode(reply).gram).all())
    return report_poisoning(
        [status], None if finite else f"status {reply.status_code}, or an answer that is not finite"
    )


@attack(3, "poisoning weight", sends="the heaviest upload that is accepted, up to 10^8", holds="moves others by < 25%")
def outweigh(arena: Arena) -> Finding:
    """Let a poisoning agent with the opposite theta of five honest agents claim as many observations as it can."""
    server = arena.serve(dimension=5, generous=False)
    theta = np.array([0.6, 0.4, 0.3, 0.2, 0.1])
    agents = [connect_agent(server, str(arena.folder / f"{number}.db")) for number in range(5)]
    for seed, agent in enumerate(agents):
        live(agent, theta, 30, seed)
    before = agents[0].estimate
    claims = (10**8, 10**7, 10**6, 10**5, 5 * 10**4, 2 * 10**4, 10**4, 10**3)
    claimed = next((count for count in claims if upload_poison(server, -theta, count)), 0)
    live(agents[0], theta, 10, 99)
    way = -theta - before
    moved = float((agents[0].estimate - before) @ way / (way @ way))
    for agent in agents:
        agent.close()
    return Finding(f"{claimed:.0e} observations accepted; others move {moved:.0%} of the way", moved < 0.25)


def live(agent: RemoteAgent, theta: NDArray[np.float64], rounds: int, seed: int) -> None:
    """Play rounds with a user of this theta, with an exchange after each."""
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        items = draw_features(random, 12, theta.size)
        shown = agent.recommend(items, 4)
        clicks = random.random(4) < shown.features @ theta
        agent.feedback(shown, int(np.argmax(clicks)) if clicks.any() else None, round_=2, draw=0.0)
    agent.flush(15.0)


def upload_poison(server: ServerProcess, theta: NDArray[np.float64], count: int) -> bool:
    """Upload the statistics of ``count`` observations of a theta; return whether the server accepts them."""
    d = theta.size
    gram = np.eye(d) * np.floor(count / d)
    moment = np.round(gram @ theta * 4096) / 4096
    rounds = max(count // 40, 1)  # long lists: the more observations in a round, the fewer rounds to explain
    leverage = float(moment @ np.linalg.solve(gram, moment))
    clicks = int(leverage) + 1
    moment, clicks = (moment, clicks) if clicks <= rounds else (moment * np.sqrt(rounds / clicks) * 0.99, rounds)
    moment = np.trunc(moment * 4096) / 4096
    return Peer(server).upload(Statistics(gram, moment, count, clicks, rounds)).status_code == 200


@attack(8, "groups merged by one observation", sends="one upload of one observation", holds="as many groups as before")
def glue(arena: Arena) -> Finding:
    server = arena.serve("--policy", "fedc3ucb-h", "--alpha-d", "1", dimension=5)
    random = np.random.default_rng(4)
    peers = [Peer(server) for _ in range(10)]
    for _ in range(2):
        for number, peer in enumerate(peers):
            theta = np.zeros(5)
            theta[number % 5] = 0.9
            peer.upload(play_rounds(random, theta, 600))
    before = count_groups(server, peers)
    for _ in range(3):  # a server with a minimum of observations refuses
        one = Statistics.zero(5).observe(draw_features(random, 1, 5), None)
        if Peer(server).upload(one).status_code == 200:
            break
    else:
        Peer(server).upload(play_rounds(random, np.full(5, 0.1), 3))
    after = count_groups(server, peers)
    return Finding(f"{before} groups become {after}", after >= before > 1)


def count_groups(server: ServerProcess, peers: list[Peer]) -> int:
    """Count the groups of these agents."""
    labels = server.connect_operator().fetch_overview().labels
    return len({labels[str(peer.agent)] for peer in peers})


@attack(
    11,
    "subtraction in a group of two",
    sends="one agent subtracts its upload from its answer",
    holds="the other's data are not revealed",
)
def subtract_oneself(arena: Arena) -> Finding:
    server = arena.serve()
    random = np.random.default_rng(2)
    theta = np.array([0.5, 0.3, 0.1])
    victim, spy = Peer(server), Peer(server)
    uploaded, own = play_rounds(random, theta, 40), play_rounds(random, theta, 40)
    victim.upload(uploaded)
    reply = spy.upload(own)
    if reply.status_code != 200:
        return Finding(f"status {reply.status_code}", False)
    left = spy.decode(reply) - own
    error = float(np.abs(left.gram - uploaded.gram).max())
    counted = "known" if left.count == uploaded.count else "not known"
    return Finding(f"the peer's gram is known to {error:.1g}, its count is {counted}", error > 1.0)
