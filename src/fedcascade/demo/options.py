"""The options of ``fedcascade live`` and ``fedcascade swarm``: declared once, and light to import."""

from dataclasses import dataclass
from pathlib import Path

from fedcascade.checks import NONNEGATIVE, whole_numbers
from fedcascade.constants import Checked, constant

COUNT = whole_numbers(1)


@dataclass(frozen=True, kw_only=True)
class DemoSettings(Checked):
    """The simulated users of a demo."""

    users: int = constant(40, "How many simulated users, each with an agent", COUNT)
    clusters: int = constant(5, "How many tastes they have, at most 6", COUNT)
    rounds: int = constant(20_000, "T, how many rounds to play", COUNT)
    pace: float = constant(100.0, "Rounds per second to begin with; the page can change it", NONNEGATIVE)
    seed: int = constant(1, "Names the environment: users, films, clicks and luck all follow from it", whole_numbers(0))
    drift: bool = constant(False, "Let half of the users change their minds when you press a button")


@dataclass(frozen=True, kw_only=True)
class SwarmOptions(Checked):
    """How simulated users play against a real server."""

    rounds: int = constant(20_000, "T, how many rounds to play", COUNT)
    checkpoints: int = constant(10, "At how many evenly spaced rounds the curve is kept", COUNT)
    folder: Path | None = constant(None, "Where the agents keep their files. [default: in memory]")
    lockstep: bool = constant(
        False, "Wait for every exchange, as a simulation does; else exchanges run in the background"
    )
    min_observations: int | None = constant(
        None, "Fewest observations in an upload. [default: 0 with --lockstep, else 2 d]", whole_numbers(0)
    )
    log: Path | None = constant(None, "Write the lists to this log: .parquet, .csv or .jsonl")

    def get_min_observations(self, dimension: int) -> int:
        """Return the fewest observations in an upload: the privacy floor, which a lockstep run does without."""
        if self.min_observations is not None:
            return self.min_observations
        return 0 if self.lockstep else 2 * dimension
