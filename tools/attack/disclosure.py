"""Attacks on other agents' data by reading twice: priors at enrolment, answers, counters, metrics."""

import re
from collections.abc import Callable

import msgspec
import numpy as np
from nacl.signing import SigningKey
from numpy.typing import NDArray

from attack.arena import Arena, ServerProcess
from attack.peers import Peer, play_rounds
from attack.registry import Finding, attack
from fedcascade.service.agent.client import enrol_agent
from fedcascade.service.protocol import wire

VICTIMS = 24
THETA = np.array([0.5, 0.3, 0.1])
Prior = wire.PriorMessage | None


class TokenHolder:
    """A holder of one enrolment token that sends it again and again."""

    def __init__(self, server: ServerProcess) -> None:
        self.transport, self.key = server.connect(), SigningKey.generate()
        [self.token] = server.connect_operator().create_tokens()

    def read(self) -> Prior:
        """Enrol, again if need be, and return the prior."""
        prior = enrol_agent(self.transport, self.token, self.key).prior
        return None if isinstance(prior, msgspec.UnsetType) else prior


def draw_theta(random: np.random.Generator) -> NDArray[np.float64]:
    drawn = np.abs(random.normal(size=3))
    return np.asarray(drawn / np.linalg.norm(drawn), np.float64)


def upload_some(peer: Peer, random: np.random.Generator, theta: NDArray[np.float64] = THETA, rounds: int = 20) -> None:
    assert peer.upload(play_rounds(random, theta, rounds)).status_code == 200


def estimate_mean(prior: Prior, lambda_: float) -> NDArray[np.float64] | None:
    """Return the mean of a prior."""
    if prior is None:
        return None
    statistics = wire.unpack_statistics(prior.numbers, (0, 0, 0), 3)
    return np.asarray(np.linalg.solve(statistics.gram + lambda_ * np.eye(3), statistics.moment), np.float64)


def count_changed(read: Callable[[], Prior], victims: list[Peer], random: np.random.Generator) -> tuple[int, int]:
    """Let each victim upload once; return how many uploads change what is read, and how many rounds are known."""
    changed = known = 0
    before = read()
    for number, victim in enumerate(victims):
        rounds = 20 + number
        upload_some(victim, random, rounds=rounds)
        after = read()
        changed += before != after
        known += before is not None and after is not None and after.system_rounds - before.system_rounds == rounds
        before = after
    return changed, known


@attack(201, "one token, many priors", sends="its token again after each of 24 uploads", holds="no upload is seen")
def read_again(arena: Arena) -> Finding:
    server, random = arena.serve(), np.random.default_rng(1)
    peers = [Peer(server) for _ in range(8)]
    for peer in 2 * peers:
        upload_some(peer, random)
    holder = TokenHolder(server)
    if holder.read() is None:
        return Finding("no prior of eight agents", False)
    changed, known = count_changed(holder.read, (3 * peers)[:VICTIMS], random)
    return Finding(f"{changed} of 24 uploads seen, rounds of {known} known", changed <= 1 and known == 0)


@attack(201, "prior of a victim and two spies", sends="two uploads of spies, an enrolment", holds="no prior")
def isolate_by_prior(arena: Arena) -> Finding:
    server, random, theta = arena.serve(), np.random.default_rng(2), np.array([0.1, 0.2, 0.9])
    spies, victim = [Peer(server) for _ in range(2)], Peer(server)
    upload_some(victim, random, theta, 200)
    for _ in range(6):
        for spy in spies:
            upload_some(spy, random, THETA, 20)
    prior = TokenHolder(server).read()
    mean = estimate_mean(prior, float(spies[0].enrolment.terms.constants["lambda_"]))
    if mean is None:
        return Finding("no prior", True)
    error = float(np.linalg.norm(3 * mean - 2 * THETA - theta) / np.linalg.norm(theta))
    return Finding(f"theta of the victim is known to {error:.0%} of its length", False)


@attack(201, "prior before and after a deletion", sends="an enrolment before and after", holds="the same prior")
def difference_forgotten(arena: Arena) -> Finding:
    """Let two spies upload after the deletion, so that the server fits its population again."""
    server, random = arena.serve(), np.random.default_rng(3)
    peers, spies = [Peer(server) for _ in range(8)], [Peer(server) for _ in range(2)]
    for peer in 2 * (peers + spies):
        upload_some(peer, random)
    victim, theta = peers[0], np.array([0.1, 0.2, 0.9])
    upload_some(victim, random, theta, 100)
    for spy in 6 * spies:
        upload_some(spy, random)
    lambda_ = float(victim.enrolment.terms.constants["lambda_"])
    before = estimate_mean(TokenHolder(server).read(), lambda_)
    server.connect_operator().forget(victim.agent)
    for spy in 3 * spies:
        upload_some(spy, random)
    after = estimate_mean(TokenHolder(server).read(), lambda_)
    if before is None or after is None:
        return Finding("no prior", False)
    moved = before - after
    cosine = float(moved @ theta / max(1e-12, np.linalg.norm(moved) * np.linalg.norm(theta)))
    way = f", at a cosine of {cosine:.2f} to the victim's theta" if moved.any() else ""
    return Finding(f"the mean moves by {np.linalg.norm(moved):.1g}{way}", not moved.any())


@attack(
    201,
    "priors of many tokens",
    sends="17 tokens and four spies around 16 uploads",
    holds="victims are no nearer than strangers",
)
def difference_tokens(arena: Arena) -> Finding:
    """Estimate each victim's theta from the difference of two priors that surround its upload.

    Only uploads that change the prior count. The same differences are compared with as many users that never uploaded:
    the prior moves within few directions, so they have a high |cosine| too, and what a victim has beyond that is
    disclosed.
    """
    server, random = arena.serve(), np.random.default_rng(4)
    spies, victims = [Peer(server) for _ in range(4)], [Peer(server) for _ in range(VICTIMS)]
    for peer in 3 * spies + victims[:8]:
        upload_some(peer, random)
    lambda_ = float(spies[0].enrolment.terms.constants["lambda_"])
    before, cosines, others = estimate_mean(TokenHolder(server).read(), lambda_), list[float](), list[float]()
    for victim in victims[8:]:
        theta = draw_theta(random)
        strangers = [draw_theta(random) for _ in range(50)]
        upload_some(victim, random, theta, 100)
        for spy in 5 * spies:
            upload_some(spy, random, rounds=8)
        after = estimate_mean(TokenHolder(server).read(), lambda_)
        if before is not None and after is not None and (after != before).any():
            cosines.append(measure_cosine(after - before, theta - before))
            others += [measure_cosine(after - before, stranger - before) for stranger in strangers]
        before = after
    tried, seen = len(victims[8:]), len(cosines)
    if not cosines:
        return Finding(f"none of {tried} uploads changes the prior", True)
    middle, chance = float(np.median(cosines)), float(np.median(others))
    # Ranks of victims among strangers are uniform if nothing is disclosed; their mean is then normal, nearly.
    ranks = [float(np.mean(np.array(others) < cosine)) for cosine in cosines]
    excess = (float(np.mean(ranks)) - 0.5) * float(np.sqrt(12 * seen))
    text = f"{seen} of {tried} uploads change the prior; in these, median |cosine| to the victim's theta {middle:.2f}"
    return Finding(f"{text}, to a stranger's {chance:.2f} ({excess:+.1f} deviations)", excess < 3)


def measure_cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Return the absolute cosine between two vectors."""
    return abs(float(one @ other)) / float(np.linalg.norm(one) * np.linalg.norm(other))


@attack(201, "rounds read from answers", sends="a spy's upload around each of 24", holds="at most two are known")
def difference_counters(arena: Arena) -> Finding:
    server, random = arena.serve(), np.random.default_rng(5)
    spy, victims = Peer(server), [Peer(server) for _ in range(4)]

    def read() -> int:
        own = play_rounds(random, THETA, 5)
        reply = spy.upload(own)
        return wire.decode(reply.content, wire.AnswerMessage, wire.MSGPACK).system_rounds

    for victim in victims:
        upload_some(victim, random)
    before, known = read(), 0
    for number in range(VICTIMS):
        upload_some(victims[number % 4], random, rounds=20 + number)
        after = read()
        known += after - before - 5 == 20 + number
        before = after
    return Finding(f"rounds of {known} of 24 uploads known", known <= 2)


@attack(210, "metrics read by a stranger", sends="GET /metrics around 24 uploads", holds="no rounds, no numbers")
def read_metrics(arena: Arena) -> Finding:
    server, random = arena.serve(), np.random.default_rng(6)
    peers = [Peer(server) for _ in range(8)]

    def read() -> tuple[float, str]:
        reply = server.connect().send("GET", "/metrics", b"", {})
        found = re.search(r"^fedcascade_rounds (\S+)$", reply.content.decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0, reply.content.decode()

    for peer in peers:
        upload_some(peer, random)
    assert peers[0].upload(play_rounds(random, THETA, 2_000)).status_code == 200  # abnormally many
    before, known = read()[0], 0
    for number in range(VICTIMS):
        upload_some(peers[1 + number % 7], random, rounds=20 + number)
        after, _ = read()
        known += after - before == 20 + number
        before = after
    named = str(peers[0].agent) in read()[1]
    text = f"rounds of {known} of 24 uploads known, the largest agent is {'named' if named else 'not named'}"
    return Finding(text, known <= 2 and not named)
