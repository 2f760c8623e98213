"""A job: one run as a plain value that any process on any machine can play, with the same result."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from fedcascade import __version__
from fedcascade.environments.clustered import Clustered
from fedcascade.experiments.environments import World, build, fingerprint
from fedcascade.experiments.plan import Plan, Value, inside, systems_in
from fedcascade.federation.policies import Policy, get_policy
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.engines import simulate, simulate_together
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.summary import summarise
from fedcascade.simulation.trace import Trace

Record = dict[str, Any]


class Job(Struct, frozen=True, kw_only=True):
    """Everything that a run's result depends on, and nothing else."""

    world: World
    policy: str
    constants: dict[str, Value]
    seed: int
    rounds: int
    checkpoints: int
    list_length: int
    version: str = __version__
    data: str | None = None

    @property
    def key(self) -> str:
        """A name for this run: equal jobs have equal keys, whichever plan they come from."""
        return hashlib.sha256(msgspec.json.encode(self, order="deterministic")).hexdigest()[:20]


class Run(Struct, frozen=True):
    """A job and where it stands in a plan."""

    experiment: str
    environment: str
    system: str
    job: Job


def runs_of(plans: Sequence[Plan]) -> list[Run]:
    """Every run of the plans, in their order; runs that several plans share come once for each."""
    return [
        Run(
            plan.name,
            place.name,
            system.label,
            Job(
                world=place.world,
                policy=system.policy,
                constants=system.constants,
                seed=seed,
                rounds=plan.rounds,
                checkpoints=plan.checkpoints,
                list_length=plan.list_length,
                data=fingerprint(place.world),
            ),
        )
        for plan in plans
        for place in plan.environments
        for seed in plan.seeds
        for system in systems_in(plan, place.name)
    ]


def check(runs: Sequence[Run]) -> None:
    """Refuse, before anything runs, an environment that cannot be built."""
    for world, seed in {run.job.world: run.job.seed for run in runs}.items():
        build(world, seed)


def play(job: Job, progress: Callable[[int], None] | None = None) -> Record:
    """Play one run on one core."""
    trace = simulate(
        build(job.world, job.seed),
        _policy(job),
        rounds=job.rounds,
        oracle=TopK(length=job.list_length),
        threads=1,
        checkpoints=job.checkpoints,
        progress=progress,
    )
    return _record(job, trace)


def case(job: Job) -> Scenario:
    """A run as the CUDA engine takes it."""
    world = cast(Clustered, build(job.world, job.seed))
    return Scenario(world, _policy(job), job.rounds, TopK(length=job.list_length), job.checkpoints)


def play_together(jobs: Sequence[Job], progress: Callable[[int], None] | None = None) -> list[Record]:
    """Play many runs at once on the GPU."""
    traces = dict(simulate_together([case(job) for job in jobs], progress))
    return [_record(job, traces[number]) for number, job in enumerate(jobs)]


def _policy(job: Job) -> Policy:
    return get_policy(job.policy).with_constants(**inside(job.constants))


def _record(job: Job, trace: Trace) -> Record:
    return {"key": job.key, "job": msgspec.to_builtins(job), **summarise(trace, seed=job.seed)}
