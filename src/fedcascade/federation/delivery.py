"""How messages travel when agents and server live in one process: one call hands them over at once."""

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
    """Algorithm 1, lines 8 to 11: hand over an upload, deliver what the server answers; returns all that crossed."""
    called = (agents[one].surrender_buffer(upload.cause) for one in server.agents_to_collect(upload))
    uploads = (upload, *called)
    return uploads, _deliver(agents, server.receive(*uploads))


def _deliver(agents: Sequence[Agent], downloads: tuple[Download, ...]) -> tuple[Download, ...]:
    for download in downloads:
        agents[download.agent].receive(download)
    return downloads
