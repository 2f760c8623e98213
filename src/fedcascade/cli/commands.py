"""The command line: ``fedcascade run``, ``fedcascade policies``, and the commands of neighbouring modules.

Heavy modules are imported by the command that needs them, so that ``fedcascade --help`` answers at once.
"""

import json
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, CycloptsError

from fedcascade import __version__
from fedcascade.cli.options import ConstantOptions, EnvironmentOptions, Json, Whole, option, select_policies

if TYPE_CHECKING:
    from fedcascade.simulation.trace import Trace

app = App(
    name="fedcascade",
    help="Recommend ranked lists, learn from the clicks next to each user, find out who is alike.",
    help_format="plaintext",
    version=__version__,
    result_action="return_value",
)


@app.command
def run(
    *,
    policy: Annotated[
        list[str],
        option("System to run (see 'fedcascade policies'). Give it several times, and all meet the same rounds."),
    ] = ["fedc3ucb-h"],  # noqa: B006 (cyclopts shows it, nobody changes it)
    rounds: Annotated[Whole, option("T, how many rounds to play.")] = 20_000,
    list_length: Annotated[Whole, option("K, the longest list an agent may show.")] = 4,
    checkpoints: Annotated[Whole, option("At how many evenly spaced rounds the curve is kept.")] = 10,
    engine: Annotated[
        Literal["exact", "reference", "cuda"],
        option(
            "exact: compiled, on all cores; cuda: all systems at once on a GPU (extra 'gpu'); reference: the readable "
            "loop. All give the same result."
        ),
    ] = "exact",
    threads: Annotated[Whole | None, option("How many cores the exact engine uses. [default: all]")] = None,
    json_: Json = False,
    environment_options: EnvironmentOptions = EnvironmentOptions(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Simulate one or several systems in an environment, synthetic or made from ratings, and compare them.

    Example: fedcascade run --policy fedc3ucb-h --policy fedind --rounds 20000 --clusters 5
    """
    from fedcascade.cli import terminal
    from fedcascade.learning.oracles import TopK
    from fedcascade.simulation.engines import simulate, simulate_together
    from fedcascade.simulation.scenario import Scenario
    from fedcascade.simulation.summary import summarise

    systems = select_policies(policy, constant_options)
    environment, oracle = environment_options.build(), TopK(length=list_length)
    summaries = []

    def record_trace(trace: "Trace") -> None:
        summaries.append(summarise(trace, seed=environment_options.seed))
        if json_:
            print(json.dumps(summaries[-1]), flush=True)

    with terminal.show_progress_bars() as bars:
        if engine == "cuda":
            scenarios = [Scenario(environment, system, rounds, oracle, min(checkpoints, rounds)) for system in systems]
            progress = terminal.add_bar(bars, "on the GPU", rounds * len(scenarios))
            for _, trace in sorted(simulate_together(scenarios, progress)):
                record_trace(trace)
        for system in () if engine == "cuda" else systems:
            trace = simulate(
                environment,
                system,
                rounds=rounds,
                oracle=oracle,
                engine=engine,
                threads=threads,
                checkpoints=min(checkpoints, rounds),
                progress=terminal.add_bar(bars, system.name, rounds),
            )
            record_trace(trace)
    if not json_:
        terminal.show(terminal.make_results_table(summaries))


@app.command
def policies(*, json_: Json = False) -> None:
    """List the systems that can be run: the paper's Table 1, and the parts that each is made of."""
    from fedcascade.cli import terminal
    from fedcascade.federation.policies import load_policies

    if json_:
        print(json.dumps([policy.describe() for policy in load_policies().values()]))
    else:
        terminal.show(terminal.make_systems_table(load_policies().values()))
        terminal.show(terminal.make_parts_table(load_policies().values()))


_LAZY_COMMANDS = {  # name: module, and the line of --help, which imports no module
    "reproduce": ("experiments", "Run the paper's whole evaluation and write a report."),
    "experiment": ("experiments", "Run a whole plan, in parallel."),
    "report": ("experiments", "Write the tables and figures of a results folder."),
    "theory": ("theory", "Print what the paper's Theorem 1 promises, in numbers."),
    "data": ("data", "Fetch and describe files of ratings."),
    "serve": ("service", "Run a server for agents."),
    "live": ("live", "Watch it at work: a server, simulated users, and a page that shows both."),
    "enroll": ("service", "Make one-time enrolment tokens for agents."),
    "revoke": ("service", "Let an agent speak no more."),
    "forget": ("service", "Remove an agent and everything that it uploaded."),
    "swarm": ("service", "Let real agents with simulated users play against a real server."),
}
for _name, (_module, _help) in _LAZY_COMMANDS.items():
    app.command(f"fedcascade.cli.{_module}:{_name}", name=_name, help=_help)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; bad input is one line on stderr and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"fedcascade: {message}", file=sys.stderr)
            app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()
    except (ValueError, ImportError, CycloptsError) as error:
        line = " ".join(str(error).split())
        print(f"fedcascade: {line}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader of our output has gone, as in `fedcascade policies | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except ConnectionError as error:
        print(f"fedcascade: cannot reach the server: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("fedcascade: interrupted", file=sys.stderr)
        sys.exit(130)
