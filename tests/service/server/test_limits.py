"""Floods of bad signatures meet 429, and a good agent behind the same address goes on."""

from pathlib import Path

import pytest
from nacl.signing import SigningKey

from fedcascade.service.agent import client
from fedcascade.service.protocol import wire
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.connections import TRUST_SECONDS, ForgeryLimiter
from fedcascade.service.server.settings import Limits

from ..helpers import RunningService, build_unit_upload, serve_in_process


def forge(running: RunningService, agent: int, count: int) -> list[int]:
    """The statuses of so many requests in an agent's name by somebody else."""
    forger = client.AgentClient(running.transport, SigningKey.generate(), agent)
    body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(9, 0, 3))
    return [forger.send("POST", wire.EXCHANGES, body, 9).status_code for _ in range(count)]


def test_a_flood_of_bad_signatures_meets_429_and_a_good_agent_beside_it_does_not(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db", limits=Limits(address_rate=0.001, address_burst=10.0)) as running:
        good = running.enrol()
        newcomer = running.enrol()
        good.exchange(build_unit_upload(1, 0, 3))
        assert forge(running, 4_711, 15) == [401] * 10 + [429] * 5
        good.exchange(build_unit_upload(2, 1, 3))
        with pytest.raises(Refused) as refused:  # nothing tells it from a stranger yet
            newcomer.exchange(build_unit_upload(1, 0, 3))
        assert refused.value.status == 429
        assert refused.value.retry_after is not None
        assert forge(running, good.agent, 12) == [401] * 10 + [429] * 2  # whoever names the agent locks it out here


def test_forgeries_wear_off_and_so_does_trust() -> None:
    limiter = ForgeryLimiter(rate=1.0, burst=2.0)
    limiter.trust("a", 7, 0.0)
    for _ in range(3):
        limiter.count_forgery("a", 1, 0.0)
    with pytest.raises(Refused):
        limiter.require_capacity("a", 1, 0.5)
    limiter.require_capacity("a", 7, 0.5)
    limiter.require_capacity("b", 1, 0.5)
    limiter.require_capacity("a", 1, 2.0)
    for _ in range(3):
        limiter.count_forgery("a", 1, TRUST_SECONDS + 1.0)
    with pytest.raises(Refused):
        limiter.require_capacity("a", 7, TRUST_SECONDS + 1.0)


def test_a_refusal_does_not_tell_which_agents_exist(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        good = running.enrol()
        body = wire.ENCODERS[wire.MSGPACK](build_unit_upload(1, 0, 3))
        replies = []
        for agent in (good.agent, 4_711):
            forger = client.AgentClient(running.transport, SigningKey.generate(), agent)
            reply = forger.send("POST", wire.EXCHANGES, body, 1)
            replies.append((reply.status_code, reply.content))
        assert replies[0] == replies[1]
