"""Commands of an operator: list enrolled agents, replace the operator's token."""

import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from fedcascade.checks import require, require_integer
from fedcascade.cli import terminal
from fedcascade.cli.options import Whole, option
from fedcascade.cli.service import LOCAL, TOKEN, OperatorToken, Url, connect_operator, print_notice

if TYPE_CHECKING:
    from fedcascade.service.protocol.wire import AgentList, AgentRow

MOST_PER_REQUEST = 1_000


def agents(
    *,
    state: Annotated[
        Literal["all", "active", "idle", "revoked"],
        option("Agents with uploads (active), without any (idle), or no longer accepted (revoked)."),
    ] = "all",
    limit: Annotated[Whole, option("Number of agents to list.")] = 50,
    after: Annotated[Whole, option("List agents with numbers above this one.")] = 0,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
    json_: Annotated[bool, option("Print a line of JSON for each.", name="--json")] = False,
) -> None:
    """List the agents of a server: enrolment, last upload, rounds and cluster."""
    require_integer("limit", limit)
    require(0 <= after < 2**63, f"after must be the number of an agent, got {after}")
    rows: list[AgentRow] = []
    with connect_operator(url, operator_token) as operator:
        page = operator.list_agents(after, min(limit, MOST_PER_REQUEST), state)
        rows += page.agents
        while page.more and len(rows) < limit:
            page = operator.list_agents(rows[-1].agent, min(limit - len(rows), MOST_PER_REQUEST), state)
            rows += page.agents
    if json_:
        for row in rows:
            print(json.dumps(msgspec.to_builtins(row) | {"state": name_state(row)}))
        return
    show_agents(page, rows)
    if page.more:
        print(f"next page: fedcascade agents --state {state} --limit {limit} --after {rows[-1].agent}")


def show_agents(page: "AgentList", rows: "list[AgentRow]") -> None:
    """Print a table of agents that fits 80 columns, under a line with the totals."""
    idle = page.enrolled - page.active
    counts = f"{page.enrolled:,} enrolled: {page.active:,} active, {idle:,} idle, {page.revoked:,} revoked"
    groups = "one population, no groups yet" if page.active > 1 and not page.clusters else f"{page.clusters:,} groups"
    summary = f"{counts}; {groups}"
    cells = [
        (
            str(row.agent),
            name_state(row),
            _format_time(row.enrolled, "%Y-%m-%d"),
            "never" if row.last is None else _format_time(row.last, "%Y-%m-%d %H:%M"),
            f"{row.rounds:,}",
            "" if row.cluster is None else str(row.cluster),
        )
        for row in rows
    ]
    columns = ("agent", "state", "enrolled", "last upload", "rounds", "cluster")
    terminal.show(summary, terminal.make_table("", columns, cells, right=("rounds", "cluster")))


def name_state(row: "AgentRow") -> str:
    """Name the state of an agent in one word."""
    if row.revoked:
        return "revoked"
    return "idle" if row.last is None else "active"


def _format_time(milliseconds: int, form: str) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime(form)


def enrolment_key(
    name: Annotated[str, option("Name of the key: lower-case letters, digits and hyphens.")],
    *,
    per_hour: Annotated[Whole, option("Most tokens that it creates in an hour.")] = 1_000,
    revoke: Annotated[bool, option("Revoke the key instead; tokens that it has made stay valid.")] = False,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
) -> None:
    """Make a key with which a back end creates enrolment tokens by itself, and nothing else; or revoke it."""
    from fedcascade.service.protocol.auth import create_token

    require(re.fullmatch("[a-z0-9-]{1,40}", name) is not None, f"a key's name looks like shop-1, got '{name}'")
    require(1 <= per_hour <= 10**6, f"per hour must be in 1..{10**6}, got {per_hour}")
    key = None if revoke else f"{name}.{create_token()}"
    with connect_operator(url, operator_token) as operator:
        operator.set_enrolment_key(name, key, per_hour)
    print(f"enrolment key '{name}' is revoked" if key is None else key)


def rotate_token(*, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Replace the operator's token while servers run; the old token and its dashboard sessions expire."""
    from fedcascade.service.protocol.auth import create_token, read_token, write_token

    draft = operator_token.with_name(f"{operator_token.name}.new")
    with connect_operator(url, operator_token) as operator:
        if draft.exists():  # an earlier attempt was interrupted, before or after the server took the token
            token = read_token(draft)
        else:
            token = create_token()
            write_token(draft, token)  # first, so that a crash cannot lose the only valid token
        try:
            operator.replace_token(token)
        except ValueError:
            if not _is_accepted(url, draft):
                raise
    draft.replace(operator_token)
    print_notice(
        f"the new operator token is in {operator_token}, readable by you alone; the old token is no longer valid"
    )


def _is_accepted(url: str, token_file: Path) -> bool:
    """Return whether a server accepts the token of a file as its operator's."""
    with suppress(ValueError), connect_operator(url, token_file) as operator:
        operator.list_agents(most=1)
        return True
    return False
