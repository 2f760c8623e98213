"""``fedcascade run``: simulate policies in an environment and compare them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter
from rich.table import Table

from fedcascade.checks import require, require_integer
from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import PLAIN, EnvironmentOptions, Json, OracleFlags, Whole, option
from fedcascade.cli.progress import COMPILING, add_bar, print_line, show_progress_bars
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import BASELINES, DEFAULT_POLICY, Policy
from fedcascade.learning.oracles import Oracle
from fedcascade.numerics.code_cache import announce_compilation
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.scenario import Delay
from fedcascade.simulation.trace import Trace, choose_baseline, compare_traces, summarise

COMPARED = ["fedc3ucb-h", "fedind", DEFAULT_POLICY, "known-clusters"]  # the paper's, alone, our default, known clusters


@Parameter(name="*", group=PLAIN)
@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """The engine of simulations, and their number.

    Attributes:
        engine: exact: compiled; cuda: on a GPU (extra 'gpu'); reference: the readable loop. All agree.
        threads: Cores of the exact engine. [default: all]
        seeds: Number of runs of each policy, with seeds from --seed on.
        checkpoints: Number of evenly spaced points of the curve.
        delay: Rounds between a list and its feedback: a number, a range like 0-200, or exp:MEAN.
        batch: Feedback arrives after every so many rounds, as in nightly jobs.
    """

    engine: Literal["exact", "reference", "cuda"] = "exact"
    threads: Whole | None = None
    seeds: Whole = 1
    checkpoints: Whole = 10
    delay: str = "0"
    batch: Whole = 1

    def play(
        self, environment: Environment, policies: Sequence[Policy], oracle: Oracle, rounds: int, *, keep_lists: bool
    ) -> Iterator[Trace]:
        """Yield the traces of policies and show progress."""
        late: Any = {"delay": Delay.parse(self.delay), "batch": self.batch}
        with show_progress_bars() as bars:
            for policy in policies:
                progress, points = add_bar(bars, policy.name, rounds), min(self.checkpoints, rounds)
                yield simulate(environment, policy, rounds=rounds, oracle=oracle, engine=self.engine, progress=progress,
                               threads=self.threads, checkpoints=points, keep_lists=keep_lists, **late)  # fmt: skip


def run(
    *,
    policy: Annotated[
        list[str],
        option(
            "Policies to run (see 'fedcascade policies'), as a,b. All play the same rounds. "
            f"[default: {','.join(COMPARED)}, and popularity with ratings]",
            show_default=False,
        ),
    ] = COMPARED,
    rounds: Annotated[Whole, option("T, the number of rounds.")] = 100_000,
    log: Annotated[Path | None, option("Write the lists of one policy to this log: .parquet, .csv or .jsonl.")] = None,
    json_: Json = False,
    oracle_flags: OracleFlags = OracleFlags(),  # noqa: B008 (frozen)
    engine_flags: EngineFlags = EngineFlags(),  # noqa: B008 (frozen)
    environment_options: EnvironmentOptions = EnvironmentOptions(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Simulate policies in an environment, synthetic or made from ratings, and compare them."""
    require_integer("rounds", rounds)
    require_integer("seeds", seeds := engine_flags.seeds)
    environment, chooser = environment_options.build(), oracle_flags.build()
    if policy == COMPARED and getattr(environment, "catalogue", np.zeros((1, 0))).shape[1]:
        policy = [*COMPARED, *BASELINES]
    policies = constant_options.select_policies([name for text in policy for name in text.split(",")])
    if log is not None:  # before hours of rounds
        from fedcascade.data.logs.writer import check_log_path
        from fedcascade.evaluation.simulated import write_simulated_log

        check_log_path(log)
        require(len(policies) == 1, "--log holds the lists of one policy: give --policy once")
        require(seeds == 1, "--log holds the lists of one run: leave out --seeds")
        require(engine_flags.engine != "cuda", "--log needs the exact or the reference engine: leave out --engine cuda")
    traces: dict[str, list[Trace]] = {each.name: [] for each in policies}
    with announce_compilation(lambda: None if json_ else print_line(COMPILING)):
        for seed in range(environment_options.seed, environment_options.seed + seeds):
            other: Any = {"seed": seed}
            built = environment if seed == environment_options.seed else replace(environment_options, **other).build()
            for trace in engine_flags.play(built, policies, chooser, rounds, keep_lists=log is not None):
                traces[trace.policy].append(trace)
                if json_:
                    print(json.dumps(summarise(trace, seed=seed)), flush=True)
                if log is not None:
                    write_simulated_log(log, built, trace)
    if not json_:
        terminal.show(*list_tables(policies, traces))


def list_tables(policies: Sequence[Policy], traces: Mapping[str, Sequence[Trace]]) -> Iterator[Table | str]:
    """Yield the tables of the runs, and sentences that explain them."""
    betas = [str(policy.constants().get("beta", "")) for policy in policies]
    runs, baseline = len(traces[policies[0].name]), choose_baseline(list(traces))
    compared = compare_traces(traces, baseline)
    if runs > 1:
        yield terminal.make_comparison_table(compared, betas, baseline)
    else:
        yield terminal.make_results_table([summarise(run, seed=0) for [run] in traces.values()], betas)
    if compared[0].coverage is not None:
        means = [(each.label, each.coverage, each.gini) for each in compared]
        yield terminal.make_exposure_table([(label, f"{share.mean:.0%}", f"{gini.mean:.2f}")
                                            for label, share, gini in means if share and gini])  # fmt: skip
    has_values = any(run.reward != run.clicked for each in traces.values() for run in each)
    yield terminal.explain_results(traces, runs, "reward" if has_values else "number of clicks")
    if differences := terminal.describe_differences(policies):
        yield differences
