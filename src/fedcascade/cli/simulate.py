"""``fedcascade run``: simulate policies in an environment and compare them."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, cast

from cyclopts import Parameter

from fedcascade.checks import require, require_integer
from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import EnvironmentOptions, Json, OracleFlags, Whole, option
from fedcascade.cli.progress import add_bar, announce_compiling, show_progress_bars
from fedcascade.environments.clustered import Clustered
from fedcascade.environments.environment import Environment
from fedcascade.federation.policies import DEFAULT_POLICY, Policy
from fedcascade.learning.oracles import Oracle, TopK
from fedcascade.simulation.trace import Trace, summarise

COMPARED = ["fedc3ucb-h", "fedind", DEFAULT_POLICY, "known-clusters"]  # the paper's, alone, our default, known clusters


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EngineFlags:
    """The engine of a simulation, and the curves that it records."""

    engine: Annotated[
        Literal["exact", "reference", "cuda"],
        option(
            "exact: compiled, on all cores; cuda: all policies at once on a GPU (extra 'gpu'); reference: the readable "
            "loop. All give the same result."
        ),
    ] = "exact"
    threads: Annotated[Whole | None, option("Cores of the exact engine. [default: all]")] = None
    checkpoints: Annotated[Whole, option("Number of evenly spaced points of the curve.")] = 10
    own_rounds: Annotated[
        Whole,
        option("Also show regret per user over its own first rounds, up to this many, by order of arrival. 0: off."),
    ] = 0

    def play(
        self, environment: Environment, policies: Sequence[Policy], oracle: Oracle, rounds: int, *, keep_lists: bool
    ) -> Iterator[Trace]:
        """Yield the traces of policies and show progress."""
        from fedcascade.simulation.engines import simulate, simulate_together
        from fedcascade.simulation.scenario import Scenario

        checkpoints, own_rounds = min(self.checkpoints, rounds), self.own_rounds
        with show_progress_bars() as bars:
            if self.engine == "cuda":
                clustered, top_k = cast(Clustered, environment), cast(TopK, oracle)  # the engine reports what it lacks
                scenarios = [
                    Scenario(clustered, each, rounds, top_k, checkpoints, own_rounds=own_rounds) for each in policies
                ]
                progress = add_bar(bars, "on the GPU", rounds * len(scenarios))
                yield from (trace for _, trace in sorted(simulate_together(scenarios, progress)))
                return
            for policy in policies:
                yield simulate(
                    environment,
                    policy,
                    rounds=rounds,
                    oracle=oracle,
                    engine=self.engine,
                    progress=add_bar(bars, policy.name, rounds),
                    threads=self.threads,
                    checkpoints=checkpoints,
                    keep_lists=keep_lists,
                    own_rounds=own_rounds,
                )


def run(
    *,
    policy: Annotated[
        list[str],
        option(
            "Policies to run (see 'fedcascade policies'), as a,b. All play the same rounds. "
            f"[default: {','.join(COMPARED)}]",
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
    policies = constant_options.select_policies([name for text in policy for name in text.split(",")])
    environment, chooser = environment_options.build(), oracle_flags.build()
    if log is not None:  # before hours of rounds
        from fedcascade.data.logs.writer import check_log_path
        from fedcascade.evaluation.simulated import write_simulated_log

        check_log_path(log)
        require(len(policies) == 1, "--log holds the lists of one policy: give --policy once")
        is_kept = engine_flags.engine != "cuda"
        require(is_kept, "--log needs the exact or the reference engine: leave out --engine cuda")
    summaries = []
    with announce_compiling(quiet=json_):
        for trace in engine_flags.play(environment, policies, chooser, rounds, keep_lists=log is not None):
            summaries.append(summarise(trace, seed=environment_options.seed))
            if json_:
                print(json.dumps(summaries[-1]), flush=True)
            if log is not None:
                write_simulated_log(log, environment, trace)
    if not json_:
        tables = [terminal.make_results_table(summaries), *terminal.make_causes_tables(summaries)]
        tables += terminal.make_own_tables(summaries)
        terminal.show(*tables, terminal.explain_results(summaries))
