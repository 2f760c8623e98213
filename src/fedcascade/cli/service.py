"""Commands of the service: serve, enroll, revoke, forget, swarm."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Group, Parameter

from fedcascade.checks import require, require_extra, require_integer
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
    take_settings,
)
from fedcascade.cli.progress import add_bar, print_line, show_progress_bars
from fedcascade.federation.policies import DEFAULT_POLICY
from fedcascade.service.server import settings

if TYPE_CHECKING:
    from fedcascade.service.agent.client import OperatorClient
    from fedcascade.service.server.warming import WarmStart

LOCAL = "http://127.0.0.1:8777"
TOKEN = Path("operator.token")
MOST_TOKENS, MOST_DAYS = 10_000, 366  # that a server makes at once, and for which they are good
Url = Annotated[str, option("Address of the server.")]
Number = Annotated[Whole, option("The agent's number.")]
OperatorToken = Annotated[Path, option("File that holds the operator's token.")]


def print_notice(line: str) -> None:
    """Print a line for the operator on stderr."""
    print(f"fedcascade: {line}", file=sys.stderr, flush=True)


@contextmanager
def connect_operator(url: str, token_file: Path) -> Iterator["OperatorClient"]:
    """Connect to a server as its operator."""
    from fedcascade.service.agent.client import OperatorClient
    from fedcascade.service.agent.transport import HttpTransport
    from fedcascade.service.protocol.token_file import read_token

    token = read_token(token_file)
    with closing(HttpTransport(url)) as transport:
        yield OperatorClient(transport, token)


def run_operation(url: str, token_file: Path, operation: Callable[["OperatorClient"], None], notice: str) -> None:
    """Have a server do something, and print a notice afterwards."""
    with connect_operator(url, token_file) as operator:
        operation(operator)
    print_notice(notice)


if TYPE_CHECKING:
    from fedcascade.service.server.settings import Limits, ServerOptions, UploadBounds
else:
    ServerOptions = take_settings(settings.ServerOptions, Group("Server", sort_key=1))
    Limits = take_settings(settings.Limits, Group("Limits", sort_key=2))
    UploadBounds = take_settings(settings.UploadBounds, Group("Uploads", sort_key=2))


@Parameter(name="*", group=Group("Log", sort_key=4), negative="")
@dataclass(frozen=True, kw_only=True)
class LogOutput:
    """What a server logs.

    Attributes:
        log_level: What to log on stderr.
        log_format: text: for people; json: one object per line, and nothing else.
        trace: Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT (extra 'otel').
    """

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"
    trace: bool = False


def serve(
    *,
    policy: Annotated[str, option("Policy to run (see 'fedcascade policies').", env_var="FEDCASCADE_POLICY")] = (
        DEFAULT_POLICY
    ),
    as_published: Annotated[bool, option("Run the policy as its row says, without the guards of a server.")] = False,
    warm: Annotated[
        Path | None, option("Start a new store from what 'fedcascade fit' wrote: its users are idle agents.")
    ] = None,
    options: ServerOptions = ServerOptions(),  # noqa: B008 (frozen)
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    bounds: UploadBounds = UploadBounds(),  # noqa: B008 (frozen)
    output: LogOutput = LogOutput(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Run a server for agents. A setting can also be an environment variable, such as FEDCASCADE_STORE.

    Example: fedcascade serve --store sqlite:///fedcascade.db --dimension 20
    """
    require_extra("server", "a server")
    from fedcascade.federation.policies import guard_policy
    from fedcascade.service.serve import serve as run
    from fedcascade.service.server.logs import configure_logging, log_event
    from fedcascade.service.server.metrics import make_tracer
    from fedcascade.service.server.serve import ServerSettings

    [chosen] = constant_options.select_policies([policy], *([] if as_published else [guard_policy]))
    server_settings = ServerSettings(
        **vars(options), policy=chosen, limits=limits, bounds=bounds, tracer=make_tracer() if output.trace else None,
        warm=None if warm is None else _load_warm_start(warm),
    )  # fmt: skip
    configure_logging(output.log_level, output.log_format)
    run(server_settings, log_event if output.log_format == "json" else print_notice)


def _load_warm_start(path: Path) -> "WarmStart":
    from fedcascade.saved import load_warm
    from fedcascade.service.server.warming import WarmStart

    state = load_warm(path)
    require(state.is_complete, f"{path} is of a fit that was interrupted: run the same 'fedcascade fit' once more")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WarmStart(path=path, sums=state.sums, users=state.users, policy=state.policy, digest=digest)


def enroll(
    *,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
    count: Annotated[Whole, option("How many tokens to make.")] = 1,
    valid_days: Annotated[Whole, option("For how many days they are good.")] = 7,
) -> None:
    """Make one-time enrolment tokens, one per line; each lets one agent in.

    Example: fedcascade enroll --url http://127.0.0.1:8777 --count 3
    """
    require(1 <= count <= MOST_TOKENS, f"count must be in 1..{MOST_TOKENS}, got {count}")
    require(1 <= valid_days <= MOST_DAYS, f"valid days must be in 1..{MOST_DAYS}, got {valid_days}")
    with connect_operator(url, operator_token) as operator:
        for token in operator.create_tokens(count, valid_days * 86_400):
            print(token)


def revoke(agent: Number, *, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Let an agent speak no more, from now on; what it taught stays."""
    run_operation(url, operator_token, lambda operator: operator.revoke(agent), f"agent {agent} may not speak any more")


def forget(agent: Number, *, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Remove an agent: its statistics are subtracted and its uploads erased."""
    run_operation(url, operator_token, lambda operator: operator.forget(agent), f"agent {agent} is forgotten")


def swarm(
    *,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
    agents: Annotated[Whole | None, option("How many agents, each with a simulated user. [default: --users]")] = None,
    rounds: Rounds = 20_000,
    list_length: ListLength = 4,
    checkpoints: Checkpoints = 10,
    folder: Annotated[Path | None, option("Where the agents keep their files. [default: in memory]")] = None,
    lockstep: Annotated[
        bool, option("Wait for every exchange, as a simulation does; else exchanges run in the background.")
    ] = False,
    min_observations: Annotated[
        Whole | None, option("Fewest observations in an upload. [default: 0 with --lockstep, else 2 d]")
    ] = None,
    agents_in: Annotated[
        Literal["python", "node"], option("Where agents run: in this process, or in JavaScript in Node.")
    ] = "python",
    oracle: Annotated[
        Literal["top-k", "plackett-luce", "epsilon"],
        option("How agents choose lists: the best items, or by chance, with propensities for the log."),
    ] = "top-k",
    set_oracle: Annotated[
        list[str], option("Set an argument of the oracle: epsilon=0.2. Repeatable.", show_default=False)
    ] = [],  # noqa: B006 (nobody changes it)
    log: Annotated[Path | None, option("Write the lists to this log: .parquet, .csv or .jsonl.")] = None,
    among_agents: Annotated[
        bool, option("Play though the server has agents already, who will learn from simulated users.")
    ] = False,
    json_: Json = False,
    environment_options: EnvironmentOptions = EnvironmentOptions(),  # noqa: B008 (frozen)
) -> None:
    """Let real agents with simulated users play against a real server.

    With --lockstep the exchanges are exactly those of 'fedcascade run' with the same environment and constants.

    Example: fedcascade swarm --agents 40 --rounds 20000 --url http://127.0.0.1:8777
    """
    from fedcascade.demo.node_agents import connect_in_node
    from fedcascade.demo.swarm import RegretReporter, run_swarm
    from fedcascade.learning.named_oracles import build_oracle
    from fedcascade.service.agent.client import fetch_terms
    from fedcascade.service.agent.options import build_policy
    from fedcascade.service.agent.transport import HttpTransport
    from fedcascade.simulation.trace import summarise

    counts = {"agents": agents, "rounds": rounds, "checkpoints": checkpoints}
    for name, value in counts.items():
        require_integer(name, 1 if value is None else value)
    if log is not None:
        from fedcascade.data.logs.writer import check_log_path
        from fedcascade.evaluation.simulated import write_simulated_log

        check_log_path(log)
    arguments = {name: parse_value(text) for name, text in split_assignments("set-oracle", set_oracle).items()}
    chooser = build_oracle(oracle, list_length, arguments)
    is_known = agents_in == "python" or oracle == "top-k"
    require(is_known, f"agents in {agents_in} show the best items alone: give --oracle top-k, or --agents-in python")
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with connect_operator(url, operator_token) as operator, show_progress_bars() as bars:
        offered = fetch_terms(operator.transport)
        held = operator.fetch_overview().enrolled
        words = "simulated users would spoil what they learn; take a server with an empty store, or --among-agents"
        require(among_agents or held == 0, f"the server has {held} agents already: {words}")
        policy = build_policy(offered)
        users = agents or environment_options.users
        if min_observations is None:
            min_observations = 0 if lockstep else 2 * offered.dimension
        asked = offered.min_observations
        remedy = "give --min-observations here, or start a server with --min-observations 0 for a simulation"
        require(min_observations >= asked, f"this server takes uploads of {asked} observations or more: {remedy}")
        environment = environment_options.resize(users=users, dimension=offered.dimension).build()
        bar, reporter, welcomed = add_bar(bars, policy.name, rounds), RegretReporter(operator), list[int]()
        connect_agents = None if agents_in == "python" else partial(connect_in_node, url, folder, min_observations)
        trace = run_swarm(environment, policy, rounds=rounds, operator=operator, folder=folder,
                          list_length=list_length, oracle=chooser, keep_lists=log is not None,
                          transport=HttpTransport(url), checkpoints=min(checkpoints, rounds), progress=bar,
                          lockstep=lockstep, min_observations=min_observations, connect_agents=connect_agents,
                          after_round=reporter.report_round, on_welcome=welcomed.append)  # fmt: skip
    if any(welcomed):
        print_line(f"{welcomed[0]} of {users} agents began with what the server knows of anybody")
    if log is not None:
        write_simulated_log(log, environment, trace)
    summary = summarise(trace, seed=environment_options.seed)
    if json_:
        print(json.dumps(summary))
    else:
        terminal.show(terminal.make_results_table([summary]), *terminal.make_causes_tables([summary]))
