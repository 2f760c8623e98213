"""Commands of the service: serve, enroll, revoke, forget, swarm."""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

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
)
from fedcascade.cli.progress import add_bar, print_line, show_progress_bars
from fedcascade.federation.policies import DEFAULT_POLICY

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


def serve(
    *,
    store: Annotated[
        str, option("Where everything is kept: sqlite:///file.db or postgresql://user@host/database.")
    ] = "sqlite:///fedcascade.db",
    policy: Annotated[str, option("System to run (see 'fedcascade policies').")] = DEFAULT_POLICY,
    dimension: Annotated[Whole, option("d, how many features an item has.")] = 20,
    host: Annotated[str, option("Address to listen on.")] = "127.0.0.1",
    port: Annotated[Whole, option("Port to listen on; 0 takes any that is free.")] = 8777,
    tls_cert: Annotated[Path | None, option("Certificate chain (PEM), to serve https.")] = None,
    tls_key: Annotated[Path | None, option("Private key (PEM) of the certificate.")] = None,
    operator_token: Annotated[
        Path, option("File with the operator's token; made at the first start if missing.")
    ] = TOKEN,
    rate: Annotated[float, option("Requests per second that one agent may make in the long run.")] = 0.2,
    burst: Annotated[float, option("Requests that one agent may make at once.")] = 100.0,
    address_rate: Annotated[
        float, option("Enrolments per second from one address, and requests of an operator, in the long run.")
    ] = 50.0,
    address_burst: Annotated[float, option("Enrolments from one address at once.")] = 100.0,
    longest_list: Annotated[Whole, option("Most items in a list, hence observations in a round.")] = 50,
    min_observations: Annotated[
        Whole | None, option("Fewest observations in an upload; one alone would reveal itself. [default: 2 d]")
    ] = None,
    rounds_burst: Annotated[Whole, option("Rounds that one agent may play at any pace.")] = 1_000,
    rounds_per_hour: Annotated[float, option("Rounds beyond those, for each hour since it enrolled.")] = 60.0,
    connections: Annotated[Whole, option("Most connections in all.")] = 4_096,
    connections_per_address: Annotated[Whole, option("Most connections from one address.")] = 512,
    trusted_proxy: Annotated[
        list[str] | None,
        option("A proxy's address, whose X-Forwarded-For is believed. Repeatable. [default: nobody's]"),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        option("A web site, as in https://shop.example, whose pages may hold agents. Repeatable. [default: none]"),
    ] = None,
    batch: Annotated[Whole, option("Most uploads that share one commit.")] = 256,
    snapshot_every: Annotated[
        Whole, option("Uploads between two snapshots, or two per agent if that is more.")
    ] = 10_000,
    retain: Annotated[
        float | None, option("Fold each agent's uploads that are older than so many days into one. [default: keep all]")
    ] = None,
    as_published: Annotated[
        bool, option("Run the policy as its row says, without the guards against liars, lookers and the silent.")
    ] = False,
    log_level: Annotated[Literal["debug", "info", "warning", "error"], option("What to log on stderr.")] = "info",
    log_format: Annotated[
        Literal["text", "json"], option("text: for people; json: one object per line, and nothing else.")
    ] = "text",
    trace: Annotated[
        bool, option("Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT (extra 'otel').", show_default=False)
    ] = False,
    take_over: Annotated[
        bool, option("Serve a store that was served with another policy or constants; servers with those end.")
    ] = False,
    warm: Annotated[
        Path | None,
        option("Start a new store from what 'fedcascade fit' wrote: its users are silent members."),
    ] = None,
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Run a server for agents.

    Example: fedcascade serve --store sqlite:///fedcascade.db --dimension 20
    """
    require_extra("server", "a server")
    from fedcascade.federation.policies import guard_policy
    from fedcascade.service.serve import serve as run
    from fedcascade.service.server.bounds import UploadBounds
    from fedcascade.service.server.logs import configure_logging, log_event
    from fedcascade.service.server.serve import ServerSettings
    from fedcascade.service.server.service import Limits
    from fedcascade.service.server.tracing import make_tracer

    bounds = UploadBounds(longest_list=longest_list, min_observations=min_observations, rounds_burst=rounds_burst,
                          rounds_per_hour=rounds_per_hour)  # fmt: skip
    [system] = constant_options.select_policies([policy], *([] if as_published else [guard_policy]))
    limits = Limits(rate=rate, burst=burst, connections=connections, proxies=tuple(trusted_proxy or ()),
                    origins=tuple(allow_origin or ()), connections_per_address=connections_per_address,
                    address_rate=address_rate, address_burst=address_burst)  # fmt: skip
    settings = ServerSettings(store=store, policy=system, dimension=dimension, host=host, port=port,
                              tls_cert=tls_cert, tls_key=tls_key, operator_token=operator_token, batch=batch,
                              snapshot_every=snapshot_every, retain=retain, bounds=bounds,
                              limits=limits, tracer=make_tracer() if trace else None, take_over=take_over,
                              warm=None if warm is None else _load_warm_start(warm))  # fmt: skip
    configure_logging(log_level, log_format)
    run(settings, log_event if log_format == "json" else print_notice)


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
    from fedcascade.service.agent.terms import build_policy
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
