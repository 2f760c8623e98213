"""A job: one run as a plain value that any process on any machine can compute, with the same result."""

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import msgspec
from msgspec import Struct

from fedcascade import __version__
from fedcascade.checks import require
from fedcascade.environments.clustered import Clustered
from fedcascade.evaluation.simulated import learn_from_random_lists
from fedcascade.experiments.own_policies import find_policy
from fedcascade.experiments.plan import (
    EnvironmentSpec,
    NamedEnvironment,
    Plan,
    PlannedPolicy,
    Value,
    hash_file,
    select_policies,
    to_field_names,
)
from fedcascade.learning.named_oracles import build_oracle
from fedcascade.simulation.engines import simulate_scenario, simulate_together
from fedcascade.simulation.scenario import Scenario
from fedcascade.simulation.trace import ARITHMETIC, Trace, summarise

Record = dict[str, Any]
_NO_SOURCE = b',"source":"","digest":""}'


class Job(Struct, frozen=True, kw_only=True):
    """Everything that the result of a run depends on, and nothing else."""

    environment: EnvironmentSpec
    policy: str
    constants: dict[str, Value]
    seed: int
    rounds: int
    checkpoints: int
    list_length: int
    oracle: str
    set_oracle: dict[str, Value]
    version: str = __version__
    arithmetic: int = ARITHMETIC
    data: str | None = None
    warm: int = 0  # logged random lists per user
    source: str = ""  # of a policy that no package offers
    digest: str = ""

    @property
    def key(self) -> str:
        """A name for the result; equal jobs of different plans have equal keys."""
        encoded = msgspec.json.encode(msgspec.structs.replace(self, source=""), order="deterministic")
        without = encoded.removesuffix(_NO_SOURCE)  # as keys were before there were sources
        return hashlib.sha256(encoded if without == encoded else without + b"}").hexdigest()[:20]


class PlannedJob(Struct, frozen=True):
    """A job, with the names of its experiment and environment and the label of its policy."""

    experiment: str
    environment: str
    label: str
    job: Job


def list_planned_jobs(plans: Sequence[Plan]) -> list[PlannedJob]:
    """Return every job of the plans, in their order; a job that several plans share comes once for each."""
    return [
        PlannedJob(plan.name, environment.name, policy.label, _make_job(plan, environment, policy, seed))
        for plan in plans
        for environment in plan.environments
        for seed in environment.seeds or plan.seeds
        for policy in select_policies(plan.policies, environment.name)
    ]


def _make_job(plan: Plan, environment: NamedEnvironment, policy: PlannedPolicy, seed: int) -> Job:
    spec = environment.spec
    rounds = (environment.rounds or plan.rounds) * (spec.declared.users if plan.per_user else 1)
    return Job(
        environment=spec,
        policy=policy.policy,
        constants=policy.constants,
        seed=seed,
        rounds=rounds,
        checkpoints=environment.checkpoints or plan.checkpoints,
        list_length=environment.list_length or plan.list_length,
        oracle=policy.oracle or plan.oracle,
        set_oracle=policy.set_oracle if policy.oracle else plan.set_oracle,
        data=None if spec.file is None else hash_file(spec.file),
        warm=policy.warm,
        source=policy.source,
        digest=policy.digest,
    )


def check_environments(planned_jobs: Sequence[PlannedJob]) -> None:
    """Refuse, before anything runs, an environment that cannot be built."""
    for planned in {msgspec.json.encode(planned.job.environment): planned for planned in planned_jobs}.values():
        job = planned.job
        try:
            job.environment.build(job.seed)
        except ValueError as error:
            raise ValueError(f"plan '{planned.experiment}', environment '{planned.environment}': {error}") from None


def run_job(job: Job, progress: Callable[[int], None] | None = None) -> Record:
    """Compute one run on one core; its seconds are processor time."""
    started = time.process_time()
    record = _make_record(job, simulate_scenario(build_scenario(job), progress, threads=1))
    return record | {"seconds": time.process_time() - started}


def build_scenario(job: Job) -> Scenario:
    """Build the scenario of one run."""
    environment = cast(Clustered, job.environment.build(job.seed))
    warm = None
    if job.warm:
        require(isinstance(environment, Clustered), f"{type(environment).__name__} cannot make a log to start from")
        warm = learn_from_random_lists(environment, job.warm, list_length=job.list_length)
    policy = find_policy(job.policy, job.source).with_constants(**to_field_names(job.constants))
    oracle = build_oracle(job.oracle, job.list_length, job.set_oracle)
    return Scenario(environment, policy, job.rounds, oracle, job.checkpoints, warm=warm)


def run_jobs_on_gpu(jobs: Sequence[Job], progress: Callable[[int], None] | None = None) -> list[Record]:
    """Compute many runs at once on the GPU."""
    traces = dict(simulate_together([build_scenario(job) for job in jobs], progress))
    return [_make_record(job, traces[number]) for number, job in enumerate(jobs)]


def _make_record(job: Job, trace: Trace) -> Record:
    return {"key": job.key, "job": msgspec.to_builtins(job), **summarise(trace, seed=job.seed)}
