"""A Trace as plain data: what ``--json`` prints and tables show."""

from typing import Any

from fedcascade.federation.messages import Cause
from fedcascade.simulation.trace import Trace

CURVE = ("round", "regret", "communications", "clustering_error")  # of each checkpoint


def summarise(trace: Trace, *, seed: int) -> dict[str, Any]:
    """The totals and the curve of a Trace, ready for JSON."""
    return {
        "policy": trace.policy,
        "engine": trace.engine,
        "seed": seed,
        "rounds": trace.rounds,
        "regret": trace.regret,
        "reward": trace.reward,
        "observations": trace.observations,
        "communications": {"total": trace.communications(), **_count_by_cause(trace)},
        "bytes": {
            "up": sum(exchange.bytes_up for exchange in trace.ledger),
            "down": sum(exchange.bytes_down for exchange in trace.ledger),
        },
        "clusters": trace.clusters,
        "clustering_error": trace.clustering_error,
        "seconds": trace.seconds,
        "curve": [{name: getattr(point, name) for name in CURVE} for point in trace.curve],
    }


def _count_by_cause(trace: Trace) -> dict[str, int]:
    """How many exchanges had which cause: always those of the paper, others where there are any."""
    counts = {cause: trace.communications(cause) for cause in Cause}
    paper = (Cause.DETERMINANT, Cause.AUXILIARY, Cause.FORCED)
    return {cause.value: count for cause, count in counts.items() if count or cause in paper}
