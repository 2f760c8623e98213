"""Commands of the service: serve, enroll, revoke, forget, swarm."""

import hashlib
import json
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from fedcascade.checks import require
from fedcascade.cli import terminal
from fedcascade.cli.constants import ConstantOptions
from fedcascade.cli.options import EnvironmentOptions, Json, OracleFlags, Whole, option, take_options
from fedcascade.cli.progress import add_bar, print_line, show_progress_bars
from fedcascade.demo import options as demo_options
from fedcascade.federation.policies import DEFAULT_POLICY, Policy
from fedcascade.service.server import settings

if TYPE_CHECKING:
    from fedcascade.service.agent.client import OperatorClient
    from fedcascade.service.server.serve import ServerSettings
    from fedcascade.service.server.warming import WarmStart
    from fedcascade.simulation.trace import Recorder

    Tenants = dict[str, ServerSettings]

LOCAL = f"http://{settings.ServerOptions.host}:{settings.ServerOptions.port}"
TOKEN = settings.ServerOptions.operator_token
MOST_TOKENS = 10_000  # per request
MOST_DAYS = 366  # of validity
# Options of a tenant, with the types of their values.
TENANT_OPTIONS: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("policy", "store", "features", "operator_token", "privacy"), (str,)),
    **dict.fromkeys(("retain", "scrub", "guard_margin", "guard_level"), (int, float)),
    "dimension": (int,),
    "set": (dict,),
}
Url = Annotated[str, option("Address of the server.", env_var="FEDCASCADE_URL")]
Number = Annotated[Whole, option("The agent's number.")]
OperatorToken = Annotated[Path, option("File with the operator's token.")]


def print_notice(line: str) -> None:
    """Print a line for the operator on stderr."""
    print_line(f"fedcascade: {line}")


@contextmanager
def connect_operator(url: str, token_file: Path) -> Iterator["OperatorClient"]:
    """Connect to a server as its operator."""
    from fedcascade.service.agent.client import OperatorClient
    from fedcascade.service.agent.transport import HttpTransport
    from fedcascade.service.protocol.auth import read_token

    token = read_token(token_file)
    with closing(HttpTransport(url)) as transport:
        yield OperatorClient(transport, token)


def run_operation(url: str, token_file: Path, operation: Callable[["OperatorClient"], None], notice: str) -> None:
    """Run an operation on a server, and print a notice."""
    with connect_operator(url, token_file) as operator:
        operation(operator)
    print_notice(notice)


if TYPE_CHECKING:
    from fedcascade.demo.options import SwarmOptions
    from fedcascade.service.server.settings import Limits, ServerOptions, UploadBounds
else:
    ServerOptions = take_options(settings.ServerOptions, Group("Server", sort_key=1), variables="FEDCASCADE_")
    Limits = take_options(settings.Limits, Group("Limits", sort_key=2), variables="FEDCASCADE_")
    UploadBounds = take_options(settings.UploadBounds, Group("Uploads", sort_key=2), variables="FEDCASCADE_")
    SwarmOptions = take_options(demo_options.SwarmOptions, variables="FEDCASCADE_SWARM_")


@Parameter(name="*", group=Group("Log", sort_key=4), negative="")
@dataclass(frozen=True, kw_only=True)
class LogOutput:
    """The log of a server.

    Attributes:
        log_level: Lowest level to log on stderr.
        log_format: text, or json: one object per line.
        trace: Send OpenTelemetry traces to OTEL_EXPORTER_OTLP_ENDPOINT (extra 'otel').
    """

    log_level: Annotated[Literal["debug", "info", "warning", "error"], Parameter(env_var="FEDCASCADE_LOG_LEVEL")] = (
        "info"
    )
    log_format: Annotated[Literal["text", "json"], Parameter(env_var="FEDCASCADE_LOG_FORMAT")] = "text"
    trace: Annotated[bool, Parameter(env_var="FEDCASCADE_TRACE")] = False


def serve(
    *,
    policy: Annotated[str, option("Policy to run (see 'fedcascade policies').", env_var="FEDCASCADE_POLICY")] = (
        DEFAULT_POLICY
    ),
    as_published: Annotated[
        bool,
        option("Run the policy as published, without the guards of a server.", env_var="FEDCASCADE_AS_PUBLISHED"),
    ] = False,
    warm: Annotated[
        Path | None,
        option(
            "Start a new store from a file of 'fedcascade fit': its users become idle agents.",
            env_var="FEDCASCADE_WARM",
        ),
    ] = None,
    options: ServerOptions = ServerOptions(),  # noqa: B008 (frozen)
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    bounds: UploadBounds = UploadBounds(),  # noqa: B008 (frozen)
    output: LogOutput = LogOutput(),  # noqa: B008 (frozen)
    constant_options: ConstantOptions = ConstantOptions(),  # noqa: B008 (frozen)
) -> None:
    """Run a server for agents. A setting can also be an environment variable, such as FEDCASCADE_STORE."""
    from fedcascade.federation.policies import guard_policy
    from fedcascade.service.dashboard.routes import build_dashboard
    from fedcascade.service.server.logs import configure_logging, log_event
    from fedcascade.service.server.metrics import make_tracer
    from fedcascade.service.server.serve import ServerSettings, run_server

    guards = [] if as_published else [guard_policy]
    [chosen] = constant_options.select_policies([policy], *guards)
    server_settings = ServerSettings(
        **vars(options),
        policy=chosen,
        limits=limits,
        bounds=bounds,
        tracer=make_tracer() if output.trace else None,
        warm=None if warm is None else _load_warm_start(warm),
    )
    tenants = {} if options.tenants is None else _read_tenants(options.tenants, server_settings, *guards)
    configure_logging(output.log_level, output.log_format)
    announce = log_event if output.log_format == "json" else print_notice
    run_server(server_settings, announce, lambda service: [build_dashboard(service)], tenants)


def _read_tenants(path: Path, common: "ServerSettings", *guards: Callable[[Policy], Policy]) -> "Tenants":
    """Read the settings of each tenant from a file; what a table does not say is as on the command line."""
    from fedcascade.service.server.tenants import name_store

    require(common.warm is None, "a warm start is for one federation: start it without --tenants first")
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the tenants in '{path}': {error}") from None
    require(len(tables) > 0, f"'{path}' names no tenant")
    tenants: Tenants = {}
    for name, table in tables.items():
        fits = isinstance(table, dict) and all(
            type(value) in TENANT_OPTIONS.get(key, ()) for key, value in table.items()
        )
        kinds = ", ".join(f"{key} ({kinds[-1].__name__})" for key, kinds in TENANT_OPTIONS.items())
        require(fits, f"tenant '{name}' in '{path}' must be a table of {kinds}")
        chosen = {"operator_token": f"{name}.token", **table}
        chosen["store"] = table["store"] if "store" in table else name_store(common.store, name)
        chosen["operator_token"] = Path(chosen["operator_token"])
        constants = [f"{key}={value}" for key, value in chosen.pop("set", {}).items()]
        policy = chosen.pop("policy", common.policy.name)
        if "policy" in table or constants:
            [chosen["policy"]] = ConstantOptions(set_=constants).select_policies([policy], *guards)
        tenants[name] = replace(common, **chosen)
    for option_ in ("store", "operator_token"):
        distinct = {getattr(each, option_) for each in tenants.values()}
        require(len(distinct) == len(tenants), f"tenants in '{path}' share one {option_}: give each its own")
    return tenants


def _load_warm_start(path: Path) -> "WarmStart":
    from fedcascade.saved import load_warm
    from fedcascade.service.server.warming import WarmStart

    state = load_warm(path)
    require(state.is_complete, f"{path} is from an interrupted fit: run the same 'fedcascade fit' again")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return WarmStart(path=path, sums=state.sums, users=state.users, policy=state.policy, digest=digest)


def enroll(
    *,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
    count: Annotated[Whole, option("Number of tokens.")] = 1,
    valid_days: Annotated[Whole, option("Days until they expire.")] = 7,
) -> None:
    """Make one-time enrolment tokens, one per line; each enrols one agent."""
    require(1 <= count <= MOST_TOKENS, f"count must be in 1..{MOST_TOKENS}, got {count}")
    require(1 <= valid_days <= MOST_DAYS, f"valid days must be in 1..{MOST_DAYS}, got {valid_days}")
    with connect_operator(url, operator_token) as operator:
        for token in operator.create_tokens(count, valid_days * 86_400):
            print(token)


def revoke(agent: Number, *, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Refuse further uploads of an agent; its earlier uploads still count."""
    run_operation(url, operator_token, lambda operator: operator.revoke(agent), f"agent {agent} is revoked")


def forget(agent: Number, *, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Remove an agent: its statistics are subtracted and its uploads erased."""
    run_operation(url, operator_token, lambda operator: operator.forget(agent), f"agent {agent} is forgotten")


def pause(*, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Pause exchanges at all servers of a store: agents go on alone, and send when you resume."""
    run_operation(url, operator_token, lambda operator: operator.pause(), "exchanges are paused")


def resume(*, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Resume paused exchanges."""
    run_operation(url, operator_token, lambda operator: operator.pause(False), "exchanges are resumed")


def swarm(
    *,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
    among_agents: Annotated[
        bool, option("Run although the server has other agents, which will learn from simulated users.")
    ] = False,
    json_: Json = False,
    options: SwarmOptions = SwarmOptions(),  # noqa: B008 (frozen)
    oracle_flags: OracleFlags = OracleFlags(),  # noqa: B008 (frozen)
    environment_options: EnvironmentOptions = EnvironmentOptions(),  # noqa: B008 (frozen)
) -> None:
    """Run agents with simulated users against a server.

    With --lockstep the exchanges are exactly those of 'fedcascade run' with the same environment and constants.
    """
    from fedcascade.demo.swarm import RegretReporter, run_swarm
    from fedcascade.service.agent.client import fetch_terms
    from fedcascade.service.agent.transport import HttpTransport
    from fedcascade.simulation.trace import summarise

    oracle, primed = oracle_flags.build(), list[int]()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
    with connect_operator(url, operator_token) as operator, show_progress_bars() as bars:
        offered, held = fetch_terms(operator.transport), operator.fetch_overview().enrolled
        words = "simulated users would spoil what they learn; take a server with an empty store, or --among-agents"
        require(among_agents or held == 0, f"the server has {held} agents already: {words}")
        size: Any = {"dimension": offered.dimension}
        environment = replace(environment_options, **size).build()
        bar, reporter = add_bar(bars, offered.policy, options.rounds), RegretReporter(operator)

        def finish_round(t: int, recorder: "Recorder") -> None:
            bar(t)
            reporter.report_round(t, recorder)

        trace = run_swarm(
            environment,
            options,
            operator=operator,
            transport=HttpTransport(url),
            oracle=oracle,
            after_round=finish_round,
            on_ready=lambda agents: primed.append(sum(agent.memory.has_prior for agent in agents)),
        )
    if any(primed):
        print_line(f"{primed[0]} of {environment.users} agents started from the server's prior")
    summary = summarise(trace, seed=environment_options.seed)
    if json_:
        print(json.dumps(summary))
    else:
        terminal.show(terminal.make_results_table([summary]))
