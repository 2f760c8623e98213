"""``fedcascade run``: simulate systems in an environment and compare them."""

import json
from pathlib import Path
from typing import Annotated, Literal, cast

from fedcascade.checks import require, require_integer
from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import (
    Checkpoints,
    EnvironmentOptions,
    Json,
    ListLength,
    Rounds,
    Whole,
    option,
    parse_value,
    split_assignments,
)
from fedcascade.cli.progress import add_bar, say_while_compiling, show_progress_bars
from fedcascade.environments.behaviours import Behaviour
from fedcascade.environments.clustered import Clustered
from fedcascade.federation.policies import DEFAULT_POLICY
from fedcascade.learning.named_oracles import build_oracle
from fedcascade.learning.oracles import TopK
from fedcascade.simulation.trace import Trace, summarise

COMPARED = ["fedc3ucb-h", "fedind", DEFAULT_POLICY, "known-clusters"]  # the paper's, alone, ours, the truth


def run(
    *,
    policy: Annotated[
        list[str],
        option(
            "System to run (see 'fedcascade policies'), or several: a,b. All meet the same rounds. "
            f"[default: {','.join(COMPARED)}]",
            show_default=False,
        ),
    ] = COMPARED,
    rounds: Rounds = 100_000,
    list_length: ListLength = 4,
    oracle: Annotated[
        str,
        option(
            "Chooses a list from the scores: top-k; per-category, with at most 'limit' of each (--categories); budget, "
            "with costs within 'budget' (--costs); or the name of a plug-in's oracle (see 'fedcascade plugins')."
        ),
    ] = "top-k",
    set_oracle: Annotated[
        list[str], option("Set an argument of the oracle: limit=2. Repeatable.", show_default=False)
    ] = [],  # noqa: B006 (nobody changes it)
    checkpoints: Checkpoints = 10,
    engine: Annotated[
        Literal["exact", "reference", "cuda"],
        option(
            "exact: compiled, on all cores; cuda: all systems at once on a GPU (extra 'gpu'); reference: the readable "
            "loop. All give the same result."
        ),
    ] = "exact",
    threads: Annotated[Whole | None, option("How many cores the exact engine uses. [default: all]")] = None,
    own_rounds: Annotated[
        Whole,
        option("Also show regret per user by the rounds of its own, up to so many, by who arrived first. 0: do not."),
    ] = 0,
    clicks: Annotated[
        Literal["cascade", "dcm", "dbn", "pbm"],
        option("How users click: the cascade, or a model in which they click several items or skip positions."),
    ] = "cascade",
    click_level: Annotated[
        float, option("dcm: the chance to go on after a click; pbm: that to look at a position, by that above it.")
    ] = 0.5,
    log: Annotated[
        Path | None, option("Write the lists of the run, of one system, to this log: .parquet, .csv or .jsonl.")
    ] = None,
    json_: Json = False,
    environment_options: EnvironmentOptions = EnvironmentOptions(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Simulate one or several systems in an environment, synthetic or made from ratings, and compare them.

    Example: fedcascade run

    Example: fedcascade run --policy population,fedind --rounds 1e5 --clusters 5

    Example: fedcascade run --policy fedind --users 1e6 --rounds 1e8 --own-rounds 100
    """
    from fedcascade.simulation.engines import simulate, simulate_together
    from fedcascade.simulation.scenario import Scenario

    require_integer("rounds", rounds)
    systems = constant_options.select_policies([name for text in policy for name in text.split(",")])
    arguments = {name: parse_value(text) for name, text in split_assignments("set-oracle", set_oracle).items()}
    environment, chooser = environment_options.build(), build_oracle(oracle, list_length, arguments)
    if clicks != "cascade":
        is_ours = isinstance(environment, Clustered)
        require(is_ours, f"--clicks {clicks} needs an environment of this package, got {type(environment).__name__}")
        environment = cast(Clustered, environment).with_behaviour(Behaviour(model=clicks, level=click_level))
    checkpoints = min(checkpoints, rounds)
    summaries = []

    def record_trace(trace: Trace) -> None:
        summaries.append(summarise(trace, seed=environment_options.seed))
        if json_:
            print(json.dumps(summaries[-1]), flush=True)

    if log is not None:  # before hours of rounds
        from fedcascade.data.logs.writer import check_log_path
        from fedcascade.evaluation.simulated import write_simulated_log

        check_log_path(log)
        require(len(systems) == 1, "--log holds the lists of one system: give --policy once")
        require(engine != "cuda", "--log is written by the exact and the reference engine: leave out --engine cuda")
    with say_while_compiling(quiet=json_), show_progress_bars() as bars:
        if engine == "cuda":
            clustered, top_k = cast(Clustered, environment), cast(TopK, chooser)  # the engine reports what it lacks
            scenarios = [
                Scenario(clustered, system, rounds, top_k, checkpoints, own_rounds=own_rounds) for system in systems
            ]
            progress = add_bar(bars, "on the GPU", rounds * len(scenarios))
            for _, trace in sorted(simulate_together(scenarios, progress)):
                record_trace(trace)
        for system in () if engine == "cuda" else systems:
            progress = add_bar(bars, system.name, rounds)
            trace = simulate(environment, system, rounds=rounds, oracle=chooser, engine=engine, threads=threads,
                             checkpoints=checkpoints, keep_lists=log is not None, own_rounds=own_rounds,
                             progress=progress)  # fmt: skip
            record_trace(trace)
            if log is not None:
                write_simulated_log(log, environment, trace)
    if not json_:
        tables = [terminal.make_results_table(summaries), *terminal.make_causes_tables(summaries)]
        tables += terminal.make_own_tables(summaries)
        terminal.show(*tables, terminal.explain_results(summaries))
