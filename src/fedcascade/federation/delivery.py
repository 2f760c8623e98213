"""Delivery of messages between agents and a server in one process."""

from collections.abc import Sequence

from fedcascade.federation.agent import Agent
from fedcascade.federation.messages import Downloads, Messages, Upload
from fedcascade.federation.server import Server


def deliver_arrival(server: Server, agents: Sequence[Agent], agent: int) -> Downloads:
    """Deliver the downloads that the policy sends before an agent serves its user."""
    return _deliver(agents, server.answer_arrival(agent))


def run_exchange(server: Server, agents: Sequence[Agent], upload: Upload) -> Messages:
    """Deliver an upload and its answers, and return all uploads and downloads (Algorithm 1, lines 8 to 11)."""
    collected = (agents[agent].send_buffer(upload.cause) for agent in server.agents_to_collect(upload))
    uploads = (upload, *collected)
    return uploads, _deliver(agents, server.receive(*uploads))


def _deliver(agents: Sequence[Agent], downloads: Downloads) -> Downloads:
    for agent, statistics in downloads:
        taker = agents[agent]
        (taker.push if taker.policy.reply_rule.delays_pushes else taker.receive)(statistics)
    return downloads
