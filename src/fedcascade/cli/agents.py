"""Commands of an operator: agents lists who is enrolled, rotate-token replaces the operator's token."""

import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from fedcascade.checks import require, require_integer
from fedcascade.cli import terminal
from fedcascade.cli.options import Whole, option
from fedcascade.cli.service import LOCAL, TOKEN, OperatorToken, Url, connect_operator, print_notice

if TYPE_CHECKING:
    from fedcascade.service.protocol.wire import AgentList, AgentRow

MOST_PER_REQUEST = 1_000
SPANS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))


def agents(
    *,
    state: Annotated[
        Literal["all", "spoken", "silent", "revoked"],
        option("Those that have uploaded something, never have, or may not speak any more."),
    ] = "all",
    limit: Annotated[Whole, option("How many to list.")] = 50,
    after: Annotated[Whole, option("List those with numbers beyond this one.")] = 0,
    url: Url = LOCAL,
    operator_token: OperatorToken = TOKEN,
    json_: Annotated[bool, option("Print a line of JSON for each.", name="--json")] = False,
) -> None:
    """List the agents of a server: when they enrolled and last spoke, their rounds and clusters.

    Example: fedcascade agents --state silent --limit 20
    """
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
        print(f"there are more: fedcascade agents --state {state} --limit {limit} --after {rows[-1].agent}")


def show_agents(page: "AgentList", rows: "list[AgentRow]") -> None:
    """Print a table of agents that 80 columns can hold, under a line that counts all of them."""
    silent = page.enrolled - page.active
    counts = f"{page.enrolled:,} enrolled: {page.active:,} have spoken, {silent:,} silent, {page.revoked:,} revoked"
    summary = f"{counts}; {page.clusters:,} clusters"
    now = time.time()
    cells = [
        (
            str(row.agent),
            name_state(row),
            datetime.fromtimestamp(row.enrolled / 1000, UTC).date().isoformat(),
            "never" if row.last is None else format_age(now - row.last / 1000),
            f"{row.rounds:,}",
            "" if row.cluster is None else str(row.cluster),
        )
        for row in rows
    ]
    columns = ("agent", "state", "enrolled", "last spoke", "rounds", "cluster")
    terminal.show(summary, terminal.make_table("", columns, cells, right=("rounds", "cluster")))


def name_state(row: "AgentRow") -> str:
    """Name the state of an agent in one word."""
    if row.revoked:
        return "revoked"
    return "silent" if row.last is None else "spoken"


def format_age(seconds: float) -> str:
    """Say how long ago something was, in the largest unit that fits.

    >>> format_age(7_300), format_age(59), format_age(-3)
    ('2 hours ago', '59 seconds ago', 'now')
    """
    size, unit = next(((size, unit) for size, unit in SPANS if seconds >= size), (1, ""))
    count = int(seconds // size)
    return f"{count} {unit if count > 1 else unit[:-1]} ago" if unit else "now"


def rotate_token(*, url: Url = LOCAL, operator_token: OperatorToken = TOKEN) -> None:
    """Replace the operator's token while servers run; the old one and the pages opened with it are good no more.

    Example: fedcascade rotate-token --operator-token operator.token
    """
    from fedcascade.service.protocol.auth import create_token, read_token, write_token

    draft = operator_token.with_name(f"{operator_token.name}.new")
    with connect_operator(url, operator_token) as operator:
        if draft.exists():  # an earlier try was cut off: nobody knows whether the server has heard of it
            token = read_token(draft)
        else:
            token = create_token()
            write_token(draft, token)  # first, so that no crash can lose the only token that is good
        try:
            operator.replace_token(token)
        except ValueError:
            if not _is_good(url, token):
                raise
    draft.replace(operator_token)
    print_notice(f"the operator's new token is in {operator_token}, readable by you alone; the old one is good no more")


def _is_good(url: str, token: str) -> bool:
    """Whether a server takes a token for its operator's already."""
    from fedcascade.service.agent.client import OperatorClient
    from fedcascade.service.agent.transport import HttpTransport

    transport = HttpTransport(url)
    try:
        OperatorClient(transport, token).list_agents(most=1)
    except ValueError:
        return False
    finally:
        transport.close()
    return True
