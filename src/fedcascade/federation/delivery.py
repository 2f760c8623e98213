"""Delivers messages between agents and a server in one process, at once."""

from collections.abc import Sequence

from fedcascade.federation.agent import Agent
from fedcascade.federation.messages import Download, Upload
from fedcascade.federation.server import Server


def deliver_arrival(server: Server, agents: Sequence[Agent], agent: int) -> tuple[Download, ...]:
    """Bring an agent up to date before it serves its user, where the policy wants that."""
    return _deliver(agents, server.answer_arrival(agent))


def run_exchange(
    server: Server, agents: Sequence[Agent], upload: Upload
) -> tuple[tuple[Upload, ...], tuple[Download, ...]]:
    """Algorithm 1, lines 8 to 11: hand over an upload and deliver the answers; returns all uploads and downloads."""
    collected = (agents[agent].send_buffer(upload.cause) for agent in server.agents_to_collect(upload))
    uploads = (upload, *collected)
    return uploads, _deliver(agents, server.receive(*uploads))


def _deliver(agents: Sequence[Agent], downloads: tuple[Download, ...]) -> tuple[Download, ...]:
    for download in downloads:
        agents[download.agent].receive(download)
    return downloads
