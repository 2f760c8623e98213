"""The options of ``fedcascade live`` and ``fedcascade swarm``, without heavy imports."""

from dataclasses import dataclass
from pathlib import Path

from fedcascade.checks import NONNEGATIVE, whole_numbers
from fedcascade.constants import Checked, constant

COUNT = whole_numbers(1)


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Checked):
    """The simulated users of a demo."""

    policy: str = constant("population", "Policy of the server")
    other: str = constant("none", "Second policy, shown beside the first with the same users; or none")
    beta: float | None = constant(None, "beta of both policies. [default: their own]", NONNEGATIVE)
    alpha_c: float = constant(0.5, "alpha_c of both policies: small values make many exchanges", NONNEGATIVE)
    alpha_d: float | None = constant(None, "alpha_d of both policies. [default: their own]", NONNEGATIVE)
    users: int = constant(40, "Number of simulated users, each with an agent", COUNT)
    clusters: int = constant(5, "Number of clusters, at most 6", COUNT)
    rounds: int = constant(1_000_000, "T, how many rounds to play", COUNT)
    pace: float = constant(100.0, "Initial rounds per second; the page can change it", NONNEGATIVE)
    seed: int = constant(1, "Seed of the environment: users, films and clicks", whole_numbers(0))
    drift: bool = constant(False, "Add a button that makes half of the users drift")


@dataclass(frozen=True, kw_only=True)
class SwarmOptions(Checked):
    """Options of simulated users against a server."""

    rounds: int = constant(20_000, "T, how many rounds to play", COUNT)
    checkpoints: int = constant(10, "Number of evenly spaced points of the curve", COUNT)
    folder: Path | None = constant(None, "Folder for the files of agents. [default: in memory]")
    lockstep: bool = constant(False, "Wait for every exchange, as a simulation does, instead of in the background")
    min_observations: int | None = constant(
        None, "Fewest observations in an upload. [default: 0 with --lockstep, else 2 d]", whole_numbers(0)
    )
    log: Path | None = constant(None, "Write the lists to this log: .parquet, .csv or .jsonl")

    def get_min_observations(self, dimension: int) -> int:
        """Return the fewest observations in an upload: the privacy floor, or 0 in lockstep."""
        if self.min_observations is not None:
            return self.min_observations
        return 0 if self.lockstep else 2 * dimension
