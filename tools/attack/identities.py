"""Attacks on authentication: replays, guesses, weak keys, information in refusals."""

import time
from collections import Counter

import msgspec
import numpy as np
from nacl.signing import SigningKey

from attack.arena import Arena, ServerProcess, open_http
from attack.peers import Peer, fill_fields, play_rounds
from attack.registry import Finding, attack
from fedcascade.service.agent.client import AgentClient
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.auth import compute_digest

THETA = np.array([0.5, 0.3, 0.1])
# The encodings of the eight points of small order of Curve25519 in Edwards form, and forms of them beyond the prime.
SMALL_ORDER = [
    bytes.fromhex(text)
    for text in (
        "0100000000000000000000000000000000000000000000000000000000000000",
        "ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "0000000000000000000000000000000000000000000000000000000000000000",
        "0000000000000000000000000000000000000000000000000000000000000080",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
        "0100000000000000000000000000000000000000000000000000000000000080",
        "eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
        "edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    )
]


def encode_enrolment(token: str, public_key: bytes) -> bytes:
    """Encode an enrolment with an invalid proof."""
    given = {"protocol": wire.PROTOCOLS[-1], "token": token, "public_key": public_key}
    made_up = {"proof": bytes(64), "created": int(time.time())}
    return msgspec.msgpack.encode(fill_fields(wire.Enrolment, given | made_up, None))


def post_enrolments(server: ServerProcess, bodies: list[bytes], headers: list[dict[str, str]]) -> Counter[int]:
    """Post enrolments over one connection; count the statuses."""
    statuses: Counter[int] = Counter()
    with open_http(server.port) as connection:
        for body, more in zip(bodies, headers, strict=True):
            connection.request("POST", "/v1/agents", body, {"content-type": wire.MSGPACK, **more})
            reply = connection.getresponse()
            reply.read()
            statuses[reply.status] += 1
    return statuses


@attack(12, "replayed retry", sends="a retried upload again, elsewhere and later", holds="401 at both")
def replay_retry(arena: Arena) -> Finding:
    first, second = arena.serve(), arena.serve()
    peer = Peer(first)
    body = peer.encode(play_rounds(np.random.default_rng(1), THETA, 20), 1)
    assert peer.client.send("POST", wire.EXCHANGES, body, 1).status_code == 200
    return replay(first, second, peer, "POST", wire.EXCHANGES, body, 1)


@attack(12, "replayed GET", sends="a signed GET again, elsewhere and later", holds="401 at both")
def replay_get(arena: Arena) -> Finding:
    first, second = arena.serve(), arena.serve()
    peer = Peer(first)
    return replay(first, second, peer, "GET", f"/v1/agents/{peer.agent}", b"", 0)


def replay(
    first: ServerProcess, second: ServerProcess, peer: Peer, method: str, path: str, body: bytes, sequence: int
) -> Finding:
    """Send one signed request to a server, then the same bytes to another one and to the first after a restart."""
    headers = peer.client.sign_headers(method, path, compute_digest(body), sequence)
    assert first.connect().send(method, path, body, headers).status_code == 200
    elsewhere = second.connect().send(method, path, body, headers).status_code
    first.stop()
    second.stop()
    later = first.start().connect().send(method, path, body, headers).status_code
    return Finding(f"{elsewhere} at another server, {later} after a restart", (elsewhere, later) == (401, 401))


@attack(12, "guesses behind X-Forwarded-For", sends="400 tokens, each from 'another address'", holds="half get 429")
def forward_guesses(arena: Arena) -> Finding:
    server = arena.serve(generous=False)
    key = bytes(SigningKey.generate().verify_key)
    bodies = [encode_enrolment(f"{number:032d}", key) for number in range(400)]
    sources = [{"x-forwarded-for": f"10.0.{number // 250}.{number % 250}"} for number in range(400)]
    statuses = post_enrolments(server, bodies, sources)
    return Finding(f"{statuses[429]} of 400 get 429", statuses[429] >= 200)


@attack(12, "small-order keys", sends="11 encodings, each with a good token", holds="none enrols")
def enrol_small_order(arena: Arena) -> Finding:
    server = arena.serve()
    tokens = server.connect_operator().create_tokens(len(SMALL_ORDER))
    bodies = [encode_enrolment(token, key) for token, key in zip(tokens, SMALL_ORDER, strict=True)]
    enrolled = post_enrolments(server, bodies, [{}] * len(bodies))[201]
    return Finding(f"{enrolled} of {len(SMALL_ORDER)} enrol", enrolled == 0)


@attack(12, "known key, invented token", sends="another agent's public key", holds="refused")
def enrol_known_key(arena: Arena) -> Finding:
    server = arena.serve()
    peer = Peer(server)
    statuses = post_enrolments(
        server, [encode_enrolment("an-invented-enrolment-token", bytes(peer.key.verify_key))], [{}]
    )
    [status] = statuses
    return Finding(f"status {status}", 400 <= status < 500)


@attack(12, "agent enumeration by 401", sends="forgeries for agents that exist or not", holds="the same answer")
def enumerate_agents(arena: Arena) -> Finding:
    server = arena.serve()
    peer = Peer(server)
    replies = {}
    for agent in (peer.agent, 4_711):
        forger = AgentClient(server.connect(), SigningKey.generate(), agent)
        body = peer.encode(play_rounds(np.random.default_rng(1), THETA, 20), 1)
        reply = forger.send("POST", wire.EXCHANGES, body, 1)
        replies[agent] = reply.status_code, reply.content.replace(str(agent).encode(), b"N")
    same = len(set(replies.values())) == 1
    return Finding("the same answer" if same else f"{replies[peer.agent][1]!r} and {replies[4_711][1]!r}", same)


@attack(12, "flood of bad signatures", sends="2,000 forgeries", holds="most get 429, a good agent goes on")
def flood_forgeries(arena: Arena) -> Finding:
    """Send half from the good agent's address under another number, half from another address under its number."""
    server = arena.serve(generous=False)
    peer = Peer(server)
    statistics = play_rounds(np.random.default_rng(1), THETA, 20)
    assert peer.upload(statistics).status_code == 200
    statuses = forge(server, peer, 4_711, "127.0.0.1") + forge(server, peer, peer.agent, "127.0.0.9")
    beside = {peer.upload(statistics).status_code for _ in range(5)}
    measured = f"{statuses[429]} of 2000 get 429; the good agent gets {sorted(beside)}"
    return Finding(measured, statuses[429] >= 1_000 and beside == {200})


def forge(server: ServerProcess, peer: Peer, agent: int, source: str) -> Counter[int]:
    """Send 1,000 uploads with an agent's number and another key; count the statuses."""
    forger = AgentClient(server.connect(), SigningKey.generate(), agent)
    body = peer.encode(play_rounds(np.random.default_rng(1), THETA, 20), 2)
    statuses: Counter[int] = Counter()
    with open_http(server.port, source=source) as connection:
        for _ in range(1_000):
            connection.request(
                "POST", wire.EXCHANGES, body, forger.sign_headers("POST", wire.EXCHANGES, compute_digest(body), 2)
            )
            reply = connection.getresponse()
            reply.read()
            statuses[reply.status] += 1
    return statuses
