"""Writes docs/reference-policies.md from the table of policies, and its figures from what was measured.

Run it with ``make docs``. Words, parts and constants come from the code. Measured passages stand between
marks; they are renewed from .cache/table1.json where ``make table1`` has left one, and kept otherwise.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

from fedcascade.cli.terminal import name_part
from fedcascade.constants import ConstantDescription
from fedcascade.experiments.comparisons import estimate_mean
from fedcascade.federation.claims import TABLE_1
from fedcascade.federation.policies import POLICIES, Formula, Order, Policy

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference-policies.md"
FIGURES = ROOT / "docs" / "figures"
MEASURED = ROOT / ".cache" / "table1.json"
MARKS = re.compile(r"<!-- measured: ([^>]*?) -->\n(.*?)<!-- end -->", re.DOTALL)
HOMOGENEOUS = ("oful", "c3-ucb", "dislinucb", "async-linucb", "fedlinucb")
HETEROGENEOUS = ("club-cascade", "async-linucb-am", "phase-fclub", "fedc3ucb-h")
BESIDE = ("fedind", "club-cascade at alpha_d 7")
ALIKE = ("oful", "dislinucb", "async-linucb", "fedlinucb", "fedind")

WORDS = {
    "oful": """One learner serves all users and learns from every click, so it is always up to date and there is
nothing to exchange. It takes all users to be alike: where they differ, it converges to an average of them and its
regret grows with every round. Beta is a constant here, as in the other rows; the bound of the original paper is
`fedcascade.learning.confidence:Oful`. It was made for single items (`--list-length 1`) and runs with lists as well.""",
    "c3-ucb": """The same learner with lists and the cascade's feedback: all items up to the click are examined, and
each of them is a data point. Its parts are those of `oful`, because in this package every system scores items and
leaves the list to the oracle. With lists of one item the two are equal, round by round; a test holds that. Like
`oful`, it knows no users. With a discount gamma below 1, features and reward of the item at position k count
gamma^(k - 1) times in what is learned; scores stay as they are.""",
    "dislinucb": """Every agent decides with the last synchronisation and its own data since. When an agent has
learned much, or something long ago, it calls for a synchronisation: all agents hand over their buffers, and all get
the sum. That counts as two exchanges for every agent. With D = 0 there is one in each round, and all agents always
know the same. D as given here is the authors' choice that matches the regret of one learner.""",
    "club-cascade": """An agent asks the server when its user arrives, and uploads when the user has been served: one
exchange a round, T in all, and always up to date. Users are joined by the heterogeneity graph that the paper took over
from it. The constants are the authors' own and very cautious: edges are cut at 8 sqrt(d) widths, which takes more
than 60,000 items examined per user at d = 20 and gamma = 1. Until then it is `c3-ucb`. The measurements above also have
it with alpha_d 7, the constant of the paper's graph.""",
    "async-linucb": """An agent decides with all that it knows, and uploads when its own data since the last upload
have made the determinant grow beyond gamma_u. The server then pushes everything to each agent that misses so much that
its determinant is behind by more than gamma_d. Each upload and each push counts. With both at infinity agents are
independent learners, with both at 1 they share everything at once.""",
    "async-linucb-am": """Theta has two parts, theta = [theta_g; theta_u], and the features are used for both. The first
is shared as in `async-linucb`; the second never leaves its agent. The reward of an observation is split between the two
once: either part is fitted to what the other leaves of it, in turns until nothing changes, 100 at most. Both are kept
to length 1. What is uploaded is the shared part's share of rewards. The widths of both parts add up.""",
    "phase-fclub": """Agents are dealt out to local servers; inside one, sharing is free. Phases double in length.
When one starts, each local server deletes the edges between its users that are refuted, as in the heterogeneity graph
but by rounds; connected parts are its clusters, and a global server merges those of all local servers whose centres
are close. Then everybody knows all of its cluster. Within a phase, a local server uploads what it has of a cluster when
the determinant has grown beyond gamma_u, and the global server pushes to each local server that is behind by more than
gamma_d. The constants are those that its authors' experiments have. Here, at d = 20 and with lists, they are too near
to 1: see the [table below](#phase-fclub-with-other-constants).""",
    "fedlinucb": """An agent decides with its last download alone, and speaks when its buffer has made the determinant
grow by the factor 1 + alpha_c. The server adds the upload and answers with the sum over everybody; nobody else is
contacted. One upload with its download counts as one exchange; the authors count it as two messages. For users who are
all alike, it is the paper's system without its graph and its random exchanges, exchange by exchange.""",
    "fedc3ucb-h": """The paper's system. As in `fedlinucb` an agent is frozen between two exchanges and is answered
alone, but the answer is the sum over those who may be alike: the connected component of a graph that starts complete
and loses an edge when the data of two users refute it. Beside the exchanges that the determinant asks for there are
rare random ones, so that the server hears of everybody soon enough.""",
    "population": """Our own, and the default. The server keeps one hierarchical model of all users: theta is drawn from
a population N(m, T), or from one of up to 32 groups of users who share it. Mean, covariance, groups and the noise of
a click are learned from all uploads. An answer is the agent's own data and the posterior that other users' data give
for its theta, stated as gram and moment. The agent compares this prior with weaker versions of it by the marginal
likelihood of its own clicks, so it falls back on its own data where these predict better. Beta is in standard
deviations of a click, which the agent estimates from its own click rate. For users who change, add
`--set drift=restart`: an agent that detects a change starts over, and its next upload replaces all earlier ones.""",
    "fedind": "Every agent learns alone, in every round, and never speaks: the yardstick of what sharing is worth.",
    "force-comm": "The paper's system with an exchange at an agent's 1st, 2nd, 4th... arrival in place of random ones.",
    "no-auxiliary": "The paper's system without random exchanges.",
    "known-clusters": "A yardstick for simulations: the server is told the true clusters and never has to find them.",
}

AFTER = {
    "phase-fclub": """### phase-fclub with other constants

With its authors' constants nearly every user ends alone: the estimates of users who are alike are further apart here
than 1.5 widths. A user alone makes its determinant grow by 1.01 in most rounds, hence the exchanges
([why](decisions/0122-constants-of-phase-fclub.md)). Here is one width for alpha_d and alpha_2, and ratios of 5, those
of `async-linucb`; all else as above. `fedcascade experiment benchmarks/phases.toml` plays four widths on seeds 100 and
101; that of the smallest mean regret, chosen as for other systems, and the next one also play seeds 200 to 202:

| alpha_1 = alpha_2 | U = D | seeds | regret | exchanges | clusters found | clustering error |
|---|---|---|---|---|---|---|
| 2 | 5 | 100 to 101 | 1,934 ± 624 | 1,822 ± 591 | 34.0 | 100% |
| 3 | 5 | 100 to 101 | 984 ± 16 | 1,181 ± 114 | 13.5 | 30% |
| 4 | 5 | 100 to 101 | 1,107 ± 520 | 972 ± 44 | 10.0 | 0% |
| 5 | 5 | 100 to 101 | 1,851 ± 396 | 824 ± 95 | 10.0 | 0% |
| 3 | 5 | 200 to 202 | 922 ± 60 | 1,184 ± 52 | 12.7 | 23% |
| 4 | 5 | 200 to 202 | 1,127 ± 262 | 1,001 ± 39 | 10.0 | 0% |

The width of least regret, 3, leaves some users in groups of their own; 4 finds all clusters, with every user in its
own. Both have about half of the regret of the authors' constants, with a hundredth of the exchanges. Before you compare
with rows above, whose widths were not chosen: users of one of the four local servers share with each other in every
round, and that is not counted. No other system is granted that.
""",
}

HEAD = """# The systems

<!-- Written by `make docs` (tools/reference_policies.py). Change the code or that file, not this page. -->

All systems of the paper's Table 1 run here, on the same statistics, the same ridge regression, the same graph and the
same loop. A system is a row of `fedcascade.federation.policies:POLICIES`. It names who shares, when an agent speaks,
what it decides with and who is answered, and brings at most one part that no other has. `fedcascade policies` prints
these tables; `fedcascade run --policy NAME` runs a row, with its own constants unless you give others:
`--set name=value` reaches each of them, and `--set policy.name=value` that of one policy.

How agents speak and whether users may differ follow from a row's parts. The orders of regret and communication are
those of the paper's Table 2; they are claims of the respective papers, not measurements.
"""

OTHER_WIDTHS = """The widths of `phase-fclub` do not suit this world: with
[others](#phase-fclub-with-other-constants) it has half of the regret and a hundredth of the exchanges."""

COUNTING = """## What counts as an exchange

- An upload with its answer is one exchange (`fedcascade.federation.replies:Asker`), and so is a request with the upload
  that follows it (`fedcascade.federation.replies:OnArrival`).
- A push counts by itself, and so does the upload that set it off (`fedcascade.federation.replies:Lagging`).
- A synchronisation counts twice for every agent, for its upload and its download
  (`fedcascade.federation.replies:Everybody`).
- Agents and their local server speak for free; between local servers and the global one, each upload and each push
  counts (`fedcascade.federation.replies:LocalServers`).
- One learner that serves everybody has nobody to speak with (`fedcascade.federation.replies:OneLearner`).

The ledger has a line for each, with the bytes that really travelled, and its cause: `determinant`, `auxiliary`,
`forced`, `push`, `synchronisation` or `change`. With `--json` the first three are always there, the others where they
occur.
"""


def render_page(before: str, runs: list[dict[str, Any]]) -> str:
    """Render the whole page; measured passages come from ``runs``, or stay as they were before."""
    kept = dict(MARKS.findall(before))
    parts = [HEAD, render_systems_table(), render_parts_table(), COUNTING]
    parts += ["## Measured\n", render_measured("tables", kept, render_tables(runs) if runs else None)]
    parts += [render_section(policy, kept, runs) for policy in POLICIES.values()]
    return "\n".join(parts)


def render_measured(name: str, kept: Mapping[str, str], fresh: str | None) -> str:
    """Render a measured passage between marks."""
    return f"<!-- measured: {name} -->\n{kept.get(name, '') if fresh is None else fresh}<!-- end -->\n"


def render_systems_table() -> str:
    """Render the paper's Tables 1 and 2."""
    lines = ["| system | agents | users | arms | regret | communication | source |", "|---|---|---|---|---|---|---|"]
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
        "| policy | who shares | when an agent speaks | who is answered | what it decides with |",
        "|---|---|---|---|---|",
    ]
    for policy in POLICIES.values():
        parts = (policy.grouping, policy.trigger, policy.reply_rule, policy.decision)
        more = (part for part in (policy.personal, policy.trust, policy.changes) if part is not None)
        personal = "".join(f" + {type(part).__name__}" for part in more)
        lines.append("| " + " | ".join([f"[{policy.name}](#{policy.name})", *map(name_part, parts)]) + personal + " |")
    return "\n".join(lines) + "\n"


def render_section(policy: Policy, kept: Mapping[str, str], runs: list[dict[str, Any]]) -> str:
    """Render what a system does, its constants, its source, its curve."""
    claim = TABLE_1.get(policy.name)
    lines = [f"## {policy.name}", "", WORDS[policy.name], ""]
    lines += ["| constant | value | what it is | symbol | range |", "|---|---|---|---|---|"]
    lines += [render_constant(constant) for constant in policy.describe_constants()]
    if claim:
        lines += ["", f"Source: {claim.source}, *{claim.title}*.", "", f"Where we differ: {claim.differs}."]
        lines += ["", render_measured(policy.name, kept, render_curve(policy.name, runs) if runs else None)]
    lines += [AFTER[policy.name]] if policy.name in AFTER else []
    return "\n".join(lines).rstrip() + "\n"


def render_constant(constant: ConstantDescription) -> str:
    """Render a line of the table of constants."""
    value = constant.value.value if isinstance(constant.value, Order) else str(constant.value)
    value += " (from the sizes)" if isinstance(constant.value, Formula) else ""
    words = constant.range.words if constant.range else ""
    cells = (constant.name.rstrip("_"), value, constant.meaning, constant.symbol, words)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def select_runs(runs: list[dict[str, Any]], name: str, clusters: int) -> list[dict[str, Any]]:
    """Return the runs of a system, by seed."""
    own = [run for run in runs if run["name"] == name and run["clusters"] == clusters]
    return sorted(own, key=lambda run: run["seed"])


def format_mean(values: list[float], digits: int = 0) -> str:
    """Format mean ± half of its 95% interval, of as many seeds as there are."""
    interval = estimate_mean(values)
    return f"{interval.mean:,.{digits}f}" + (f" ± {interval.half_width:,.{digits}f}" if interval.runs > 1 else "")


def render_tables(runs: list[dict[str, Any]]) -> str:
    """Render both tables of what was measured, and what they say of the order."""
    number = count_seeds(runs)
    lines = [
        f"J = 10, 300,000 rounds, {number} seeds, lambda 4 and beta 5 for all, other constants their own (`make",
        "table1`): mean ± half of its 95% interval.",
        "",
        "| system | users | regret | exchanges | clusters found | clustering error |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*HOMOGENEOUS, *HETEROGENEOUS, *BESIDE):
        own = select_runs(runs, name, 10)
        users = POLICIES[name.partition(" ")[0]].users
        regret, exchanges = ([run["curve"][-1][which] for run in own] for which in (1, 2))
        clusters, error = mean(run["found"] for run in own), mean(100 * run["error"] for run in own)
        measured = (format_mean(regret), format_mean(exchanges), f"{clusters:.1f}", f"{error:.0f}%")
        lines.append(f"| {' | '.join((name, users, *measured))} |")
    lines += ["", describe_order(runs), "", OTHER_WIDTHS, ""]
    lines += [
        "J = 1, all users alike, 100,000 rounds, otherwise the same. Theory puts one learner first, those who share",
        "now and then next, and those who never share last:",
        "",
        "| system | regret | exchanges |",
        "|---|---|---|",
    ]
    for name in ALIKE:
        own = select_runs(runs, name, 1)
        regret, exchanges = ([run["curve"][-1][which] for run in own] for which in (1, 2))
        lines.append(f"| {name} | {format_mean(regret)} | {format_mean(exchanges)} |")
    return "\n".join(lines) + "\n"


def count_seeds(runs: list[dict[str, Any]]) -> int:
    """Count the seeds that all systems have been run with."""
    names = (*HOMOGENEOUS, *HETEROGENEOUS, *BESIDE)
    return min(
        [*(len(select_runs(runs, name, 10)) for name in names), *(len(select_runs(runs, name, 1)) for name in ALIKE)]
    )


def describe_order(runs: list[dict[str, Any]]) -> str:
    """Describe whether every system that lets users differ ends below every one that does not, seed by seed."""
    final = {
        name: [run["curve"][-1][1] for run in select_runs(runs, name, 10)]
        for name in (*HOMOGENEOUS, *HETEROGENEOUS, *BESIDE)
    }
    best = [min(final[name][seed] for name in HOMOGENEOUS) for seed in range(count_seeds(runs))]
    above = [
        name for name in HETEROGENEOUS if any(final[name][seed] >= best[seed] for seed in range(count_seeds(runs)))
    ]
    below = [name for name in HETEROGENEOUS if name not in above]
    text = f"In every seed, {', '.join(below)} end below every system that takes users to be alike."
    if above:
        text += f" Not so {', '.join(above)}."
    if "club-cascade" in above:
        mended = all(final["club-cascade at alpha_d 7"][seed] < best[seed] for seed in range(count_seeds(runs)))
        text += (
            " With its authors' constants, club-cascade has not deleted an edge by then, so it is still one learner for"
            f" everybody; with alpha_d 7, the value of the paper's graph, it {'does' if mended else 'does not either'}."
        )
    alone = [name for name in below if all(final[name][s] < final["fedind"][s] for s in range(count_seeds(runs)))]
    return text + (
        f" Below agents that never talk (`fedind`) in every seed: {', '.join(alone) or 'none of them'}; the others pay"
        " for having shared with the wrong users at the start, or with too few of the right ones: see how many clusters"
        " they find."
    )


def render_curve(name: str, runs: list[dict[str, Any]]) -> str:
    """Render the sentence and the figure of a system."""
    regret, exchanges = ([run["curve"][-1][which] for run in select_runs(runs, name, 10)] for which in (1, 2))
    return (
        f"Measured as above: regret {format_mean(regret)}, exchanges {format_mean(exchanges)}.\n\n"
        f"![Regret and exchanges of {name}, against the other systems in grey](figures/policy-{name}.svg)\n"
    )


def draw_figures(runs: list[dict[str, Any]]) -> None:
    """Draw a small figure for every system."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedcascade", "font.size": 8, "axes.spines.top": False}
    mpl.rcParams |= {"axes.spines.right": False, "font.family": "sans-serif"}
    FIGURES.mkdir(exist_ok=True)
    for name in TABLE_1:
        draw_figure(name, runs)


def draw_figure(name: str, runs: list[dict[str, Any]]) -> None:
    """Draw regret and exchanges of a system, with those of the others in grey."""
    import matplotlib.pyplot as plt
    import numpy as np

    figure, panels = plt.subplots(1, 2, figsize=(6.4, 2.1), layout="constrained")
    for system in [*(system for system in TABLE_1 if system != name), name]:
        curves = np.array([run["curve"] for run in select_runs(runs, system, 10)])
        rounds = curves[0, :, 0] / 1000
        is_own = system == name
        style = {"color": "#0b6fa4", "lw": 1.6} if is_own else {"color": "#b8b8b8", "lw": 0.7}
        for which, panel in enumerate(panels, start=1):
            middle = curves[:, :, which].mean(axis=0)
            if which == 1 or middle[-1] > 0:  # no exchanges, no line
                panel.plot(rounds, middle, **style)
            if is_own and which == 1:
                width = curves[:, :, 1].std(axis=0, ddof=1)
                panel.fill_between(rounds, middle - width, middle + width, color="#0b6fa4", alpha=0.25, lw=0)
    for panel, title in zip(panels, ("expected regret", "exchanges"), strict=True):
        panel.set_title(title, loc="left", fontsize=8)
        panel.set_xlabel("rounds, in thousands")
        panel.set_xlim(0, None)
    panels[0].set_ylim(0, None)
    panels[1].set_yscale("log")
    silent = all(run["curve"][-1][2] == 0 for run in select_runs(runs, name, 10))
    if silent:
        panels[1].text(0.98, 0.04, f"{name}: none", transform=panels[1].transAxes, ha="right", color="#0b6fa4")
    figure.savefig(FIGURES / f"policy-{name}.svg", metadata={"Date": None})
    if "--png" in sys.argv:
        figure.savefig(FIGURES / f"policy-{name}.png", dpi=150)
    plt.close(figure)


def main() -> None:
    """Write the page, and the figures where there is something to draw."""
    runs = json.loads(MEASURED.read_text()) if MEASURED.exists() else []
    runs = [run for run in runs if run["seed"] < count_seeds(runs)]  # only seeds that every system has been played with
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(render_page(before, runs), encoding="utf-8")
    if runs:
        draw_figures(runs)
    print(f"wrote {PAGE.relative_to(ROOT)}{' and its figures' if runs else ', measured passages as they were'}")


if __name__ == "__main__":
    main()
