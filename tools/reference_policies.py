"""Write docs/reference-policies.md from the table of policies: make docs."""

from pathlib import Path

from fedcascade.cli.terminal import TABLE_1, name_part
from fedcascade.constants import ConstantDescription
from fedcascade.federation.policies import BASELINES, POLICIES, Formula, Order, Policy

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference-policies.md"
TABLE = ("| constant | value | meaning | symbol | range |", "|---|---|---|---|---|")
SHARED = ("lambda_", "order", "drift")  # constants of every policy

WORDS = {
    "oful": """One learner serves all users and learns from every click, so there is nothing to exchange. It assumes
that all users are alike. It was made for single items (`--list-length 1`) and runs with lists as well.""",
    "c3-ucb": """`oful` with lists and the cascade's feedback: each examined item is an observation. With lists of one
item the two are equal.""",
    "dislinucb": """An agent decides with the last synchronisation and its own data since. When an agent has learned
much, all agents upload their buffers and all download the sum: two exchanges per agent.""",
    "club-cascade": """An agent asks the server when its user arrives, and uploads when the user has been served: one
exchange per round. It has the paper's similarity graph. Its default F is that of the authors' code: at d = 20, two
users at distance 1 lose their edge after 177 examined items each. That F falls faster than estimates converge, so like
users part as well, and nearly all end alone. With the F of their paper (`--set club-cascade.width=paper`) the edge
lasts for 61,584 items, and until then the policy equals `c3-ucb`. What finds the clusters is the paper's F with a
smaller alpha_d: [results](reference-results.md#policies-of-table-1).""",
    "async-linucb": """An agent decides with all that it knows, and uploads when its determinant has grown by gamma_u.
The server pushes everything to each agent whose determinant is behind by more than gamma_d. An agent uses a push after
it has learned from its next list. Uploads and pushes both count.""",
    "async-linucb-am": """Theta has a shared part, as in `async-linucb`, and a personal part that never leaves its
agent. Alternating minimisation splits the reward of an observation between the two.""",
    "phase-fclub": """Agents are assigned to local servers; sharing inside one is free. At the start of a phase, local
servers delete edges and the global server merges similar clusters; phases double in length. Within a phase, exchanges
follow the ratios gamma_u and gamma_d. With the authors' constants nearly every user ends alone at d = 20; `fedcascade
experiment benchmarks/phases.toml` finds others ([why](decisions/0002-paper-ambiguities-and-baselines.md)).""",
    "fedlinucb": """An agent decides with its last download, and uploads when its determinant has grown by the factor
1 + alpha_c. The answer is the sum over all agents. No other agent is contacted.""",
    "fedc3ucb-h": """The paper's policy. As `fedlinucb`, but the answer is the sum over the agent's connected
component of a graph. The graph starts complete and loses an edge when the data of two users differ too much. Rare
random exchanges let the server hear of every agent.""",
    "population": """Our policy, and the default. The server learns the distribution of theta over users: a
population, and groups inside it. An answer is the agent's own data and a Gaussian prior from other users' data. The
agent weighs that prior by the marginal likelihood of its own clicks. [How it works](explanation-our-policy.md).""",
    "fedind": "Every agent learns alone and never uploads: the baseline for what sharing is worth.",
    "force-comm": "The paper's policy with an exchange at an agent's 1st, 2nd, 4th... arrival instead of random ones.",
    "no-auxiliary": "The paper's policy without random exchanges.",
    "popularity": """A baseline for environments with a catalogue, which only simulations can play: it learns online
which items all users click most, as `oful` would with one feature per item, and shows the same to all.""",
    "known-clusters": "An upper baseline for simulations: the server knows the true clusters.",
}

# Title of the source of a policy, and where we differ from it.
SOURCES = {
    "oful": ("Improved algorithms for linear stochastic bandits",
        "beta is a constant, as in the paper's experiments; the source's is `--beta theory`"),
    "c3-ucb": ("Contextual combinatorial cascading bandits",
        "all positions count alike (a discount gamma of 1), as in the paper; the source discounts positions further "
        "down the list"),
    "dislinucb": ("Distributed bandit learning",
        "one agent is active in a round, not all; the budget counts items examined since the last synchronisation"),
    "club-cascade": ("Online clustering of contextual cascading bandits",
        "constants are computed from the sizes of a run. The paper prints F(T) = sqrt((1 + ln(1 + T)) / (1 + T)); the "
        "authors' code divides sqrt(1 + ln(1 + T)) by 1 + T, and so do we (`width`)"),
    "async-linucb": ("Asynchronous upper confidence bound algorithms for federated linear bandits",
        "a push carries the whole sum instead of the missing part, which is equivalent; as in the authors' "
        "code, an agent shows one more list before it uses a push (their text does not specify this); beta is the "
        "self-normalised bound for all data of the agent and theta of length at most 1"),
    "async-linucb-am": ("Asynchronous upper confidence bound algorithms for federated linear bandits",
        "both parts use one feature vector; the beta of the shared part scales both widths; both parts are "
        "regularised, so no pseudo-inverse is needed"),
    "phase-fclub": ("Federated online clustering of bandits",
        "no noise is added for privacy; the messages of a phase start count: one upload per local cluster and "
        "one push per part of a merged one; clusters are merged along chains of close centres; widths count "
        "rounds, each with up to K items"),
    "fedlinucb": ("A simple and provably efficient algorithm for asynchronous federated bandits",
        "lambda and beta are the paper's for all policies; an upload with its download counts once"),
    "fedc3ucb-h": (
        "Federated contextual cascading bandits with asynchronous communication and heterogeneous users (the paper)",
        "an upload is added before the server answers (`order`), which the pseudo-code leaves open"),
}  # fmt: skip

HEAD = """# Policies

<!-- Written by `make docs` (tools/reference_policies.py). Change the code or that file, not this page. -->

All policies of the paper's Table 1 run on the same statistics, ridge regression, graph and loop. A policy is a row of
`fedcascade.federation.policies:POLICIES`. `fedcascade policies` prints these tables, `fedcascade run --policy NAME`
runs a row, `--set name=value` changes a constant, and `--set policy.name=value` that of one policy.
[Which one to run](how-to-choose-a-policy.md); [what was measured](reference-results.md#policies-of-table-1).

The orders of regret and communication are claims of the respective papers, not measurements.
"""

COUNTING = """## What counts as an exchange

- An upload with its answer is one (`fedcascade.federation.replies:Asker`), and so is a request with the upload that
  follows it (`fedcascade.federation.replies:OnArrival`).
- A push is one, and so is the upload that caused it (`fedcascade.federation.replies:Lagging`).
- A synchronisation is two for every agent (`fedcascade.federation.replies:AllAgents`).
- Agents and their local server exchange for free; each upload and push between local servers and the global one counts
  (`fedcascade.federation.replies:LocalServers`).

The ledger has a line for each, with its bytes and its cause: `determinant`, `auxiliary`, `forced`, `push`,
`synchronisation` or `change`.
"""

CONSTANTS = """## Constants of every policy

The sections below list values that differ from these.
"""


def render_page() -> str:
    """Render the whole page."""
    parts = [HEAD, render_claims_table(), render_parts_table(), COUNTING, CONSTANTS, render_shared()]
    return "\n".join([*parts, *map(render_section, [*POLICIES.values(), *BASELINES.values()])])


def render_shared() -> str:
    """Render the constants that every policy has, with the values of the paper's policy."""
    described = {constant.name: constant for constant in POLICIES["fedc3ucb-h"].describe_constants()}
    return "\n".join([*TABLE, *(render_constant(described[name]) for name in SHARED)]) + "\n"


def render_claims_table() -> str:
    """Render the paper's Tables 1 and 2."""
    lines = ["| policy | agents | users | arms | regret | communication | source |", "|---|---|---|---|---|---|---|"]
    for name, claim in TABLE_1.items():
        policy = POLICIES[name]
        cells = (
            f"[{name}](#{name})",
            policy.agents,
            policy.users,
            claim.arms,
            claim.regret,
            claim.communication,
            claim.source,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def render_parts_table() -> str:
    """Render the parts that each policy is made of."""
    lines = [
        "| policy | grouping | trigger | reply rule | decision |",
        "|---|---|---|---|---|",
    ]
    for policy in POLICIES.values():
        parts = (policy.grouping, policy.trigger, policy.reply_rule, policy.decision)
        more = (part for part in (policy.personal, policy.trust, policy.changes) if part is not None)
        personal = "".join(f" + {type(part).__name__}" for part in more)
        lines.append("| " + " | ".join([f"[{policy.name}](#{policy.name})", *map(name_part, parts)]) + personal + " |")
    return "\n".join(lines) + "\n"


def render_section(policy: Policy) -> str:
    """Render what a policy does, its own constants, and its source."""
    claim = TABLE_1.get(policy.name)
    usual = {constant.name: constant.value for constant in POLICIES["fedc3ucb-h"].describe_constants()}
    own = [each for each in policy.describe_constants() if each.name not in SHARED or each.value != usual[each.name]]
    lines = [f"## {policy.name}", "", WORDS[policy.name], "", *TABLE, *map(render_constant, own)]
    if claim:
        title, differs = SOURCES[policy.name]
        lines += ["", f"Source: {claim.source}, *{title}*. Where we differ: {differs}."]
    return "\n".join(lines) + "\n"


def render_constant(constant: ConstantDescription) -> str:
    """Render a line of the table of constants."""
    value = constant.value.value if isinstance(constant.value, Order) else str(constant.value)
    value += " (computed from the sizes)" if isinstance(constant.value, Formula) else ""
    words = constant.range.words if constant.range else ""
    cells = (constant.name.rstrip("_"), value, constant.meaning, constant.symbol, words)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def main() -> None:
    """Write the page."""
    PAGE.write_text(render_page(), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
