"""Writes docs/reference-policies.md from the table of policies, and its figures from what was measured.

Run it with ``make docs``. Words, parts and constants come from the code. Measured passages stand between
marks; they are renewed from .cache/table1.json where ``make table1`` has left one, and kept otherwise.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any

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

MEANING = {
    "lambda_": "regulariser of the ridge estimate",
    "order": "whether the server adds an upload before or after it forms the answer",
    "alpha_c": "an agent speaks when its determinant has grown by this factor plus one",
    "alpha_d": "an edge is deleted beyond this many confidence widths",
    "alpha_2": "local clusters whose centres are within so many widths are merged",
    "beta": "width of exploration",
    "p_scale": "scale of the random exchanges: p_t = scale ln(t) / t",
    "gamma_u": "an agent uploads when its determinant has grown beyond this ratio; 1 is always, inf is never",
    "gamma_d": "the server pushes to an agent whose determinant is behind by more than this ratio",
    "budget": "D: items since the last synchronisation times the growth of the log-determinant",
    "hurdle": "how much more a user is taken to be unlike others than they are unlike each other, in log-odds",
    "sweeps": "how often a walk through partitions comes by each agent that it visits",
    "visits": "how many other agents a walk visits; all, if there are not more",
    "variance": "sigma^2, the noise of a click that the evidence assumes",
    "length": "how long a theta is expected to be, before any data",
    "local_servers": "how many local servers the agents are dealt out to",
    "noise": "R of the self-normalised bound that gives beta",
    "delta": "one less the confidence of that bound",
}

WORDS = {
    "oful": """One learner serves all users and learns from every click, so it is always up to date and there is
nothing to exchange. It takes all users to be alike: where they differ, it converges to an average of them and its
regret grows with every round. Beta is a constant here, as in the other rows; the bound of the original paper is
`fedcascade.learning.confidence:Oful`. It was made for single items (`--list-length 1`) and runs with lists as well.""",
    "c3-ucb": """The same learner with lists and the cascade's feedback: all items up to the click are examined, and
each of them is a data point. Its parts are those of `oful`, because in this package every system scores items and
leaves the list to the oracle. With lists of one item the two are equal, round by round; a test holds that. Like
`oful`, it knows no users.""",
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
is shared as in `async-linucb`; the second never leaves its agent. Each is fitted to the rewards that the other leaves
unexplained, in turns, one turn a round. What is uploaded are partial rewards y - theta_u . x. Widths of both parts add
up in squares, as those of a stacked vector do.""",
    "phase-fclub": """Agents are dealt out to local servers. Within one, edges are deleted as in the heterogeneity
graph. Phases double in length; at the end of each, the clusters are formed anew: connected parts of local servers,
merged across servers where their centres are close. Within a cluster, agents upload and are pushed to as in
`async-linucb`, with ratios so near to 1 that they do so nearly every round at first; whoever lands in another cluster
is told at once.""",
    "fedlinucb": """An agent decides with its last download alone, and speaks when its buffer has made the determinant
grow by the factor 1 + alpha_c. The server adds the upload and answers with the sum over everybody; nobody else is
contacted. One upload with its download counts as one exchange; the authors count it as two messages. For users who are
all alike, it is the paper's system without its graph and its random exchanges, exchange by exchange.""",
    "fedc3ucb-h": """The paper's system. As in `fedlinucb` an agent is frozen between two exchanges and is answered
alone, but the answer is the sum over those who may be alike: the connected component of a graph that starts complete
and loses an edge when the data of two users refute it. Beside the exchanges that the determinant asks for there are
rare random ones, so that the server hears of everybody soon enough.""",
    "fedc3ucb-e": """Ours, for deployment with a small beta. Early on nobody can tell who is alike, so the server does
not guess. It walks through the partitions that the data allow, each as often as it is probable, and an agent that
uploads gets its own statistics and, of everybody else's, as much as they are probably of its group. Agents decide with
their download and with their own data since, so they can speak more rarely.""",
    "fedind": "Every agent learns alone, in every round, and never speaks: the yardstick of what sharing is worth.",
    "force-comm": "The paper's system with an exchange at an agent's 1st, 2nd, 4th... arrival in place of random ones.",
    "no-auxiliary": "The paper's system without random exchanges.",
    "known-clusters": "A yardstick for simulations: the server is told the true clusters and never has to find them.",
}

HEAD = """# The systems

<!-- Written by `make docs` (tools/reference_policies.py). Change the code or that file, not this page. -->

All systems of the paper's Table 1 run here, on the same statistics, the same ridge regression, the same graph and the
same loop. A system is a row of `fedcascade.federation.policies:POLICIES`. It names who shares, when an agent speaks,
what it decides with and who is answered, and brings at most one part that no other has. `fedcascade policies` prints
these tables; `fedcascade run --policy NAME` runs a row, with its own constants unless you give others.

How agents speak and whether users may differ follow from a row's parts. The orders of regret and communication are
those of the paper's Table 2; they are claims of the respective papers, not measurements.
"""

COUNTING = """## What counts as an exchange

- An upload with its answer is one exchange (`fedcascade.federation.replies:Asker`), and so is a request with the upload
  that follows it (`fedcascade.federation.replies:OnArrival`).
- A push counts by itself, and so does the upload that set it off (`fedcascade.federation.replies:Lagging`).
- A synchronisation counts twice for every agent, for its upload and its download
  (`fedcascade.federation.replies:Everybody`).
- One learner that serves everybody has nobody to speak with (`fedcascade.federation.replies:OneLearner`).

The ledger has a line for each, with the bytes that really travelled, and its cause: `determinant`, `auxiliary`,
`forced`, `push` or `synchronisation`. With `--json` the first three are always there, the others where they occur.
"""


def page(before: str, runs: list[dict[str, Any]]) -> str:
    """The whole page; measured passages from ``runs``, or as they were before."""
    kept = dict(MARKS.findall(before))
    rows = POLICIES.values()
    parts = [HEAD, systems_table(), parts_table(), COUNTING]
    parts += ["## Measured\n", measured("tables", kept, tables(runs) if runs else None)]
    parts += [section(row, kept, runs) for row in rows]
    return "\n".join(parts)


def measured(name: str, kept: Mapping[str, str], fresh: str | None) -> str:
    """A passage between marks."""
    return f"<!-- measured: {name} -->\n{kept.get(name, '') if fresh is None else fresh}<!-- end -->\n"


def systems_table() -> str:
    """Tables 1 and 2."""
    lines = ["| system | agents | users | arms | regret | communication | source |", "|---|---|---|---|---|---|---|"]
    for name, claim in TABLE_1.items():
        row = POLICIES[name]
        cells = (
            f"[{name}](#{name})",
            row.agents,
            row.users,
            claim.arms,
            claim.regret,
            claim.communication,
            claim.source,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def parts_table() -> str:
    """What each row is made of."""
    lines = [
        "| policy | who shares | when an agent speaks | who is answered | what it decides with |",
        "|---|---|---|---|---|",
    ]
    for row in POLICIES.values():
        parts = (row.grouping, row.trigger, row.reply_rule, row.decision)
        beside = f" + {type(row.personal).__name__}" if row.personal else ""
        lines.append("| " + " | ".join([f"[{row.name}](#{row.name})", *map(words_of, parts)]) + beside + " |")
    return "\n".join(lines) + "\n"


def words_of(part: object) -> str:
    """The name of a part, or of the triggers that it joins."""
    either, other = getattr(part, "either", None), getattr(part, "other", None)
    return type(part).__name__ if either is None else f"{words_of(either)} or {words_of(other)}"


def section(row: Policy, kept: Mapping[str, str], runs: list[dict[str, Any]]) -> str:
    """What a system does, its parameters, its source, its curve."""
    claim = TABLE_1.get(row.name)
    lines = [f"## {row.name}", "", WORDS[row.name], ""]
    lines += ["| constant | value | what it is |", "|---|---|---|"]
    for name, value in row.constants().items():
        shown = value.value if isinstance(value, Order) else str(value).replace("|", "\\|")
        shown += " (from the sizes)" if isinstance(value, Formula) else ""
        lines.append(f"| {name.rstrip('_')} | {shown} | {MEANING[name]} |")
    if claim:
        lines += ["", f"Source: {claim.source}, *{claim.title}*."]
        lines += ["", measured(row.name, kept, curve(row.name, runs) if runs else None)]
    return "\n".join(lines).rstrip() + "\n"


def last(runs: list[dict[str, Any]], name: str, clusters: int) -> list[dict[str, Any]]:
    """The runs of a system."""
    mine = [run for run in runs if run["name"] == name and run["clusters"] == clusters]
    return sorted(mine, key=lambda run: run["seed"])


def spread(values: list[float], digits: int = 0) -> str:
    """Mean +- standard deviation, of as many seeds as there are."""
    return f"{mean(values):,.{digits}f}" + (f" +- {stdev(values):,.{digits}f}" if len(values) > 1 else "")


def tables(runs: list[dict[str, Any]]) -> str:
    """Both tables of what was measured, and what they say of the order."""
    lines = [
        f"J = 10, 300,000 rounds, {seeds(runs)} seeds, lambda 4 and beta 5 for all, other constants their own (`make",
        "table1`): mean +- standard deviation.",
        "",
        "| system | users | regret | exchanges | clusters found | clustering error |",
        "|---|---|---|---|---|---|",
    ]
    for name in (*HOMOGENEOUS, *HETEROGENEOUS, *BESIDE):
        mine = last(runs, name, 10)
        users = POLICIES[name.partition(" ")[0]].users
        regret, exchanges = ([run["curve"][-1][which] for run in mine] for which in (1, 2))
        found, error = [run["found"] for run in mine], [100 * run["error"] for run in mine]
        lines.append(
            f"| {name} | {users} | {spread(regret)} | {spread(exchanges)} | {mean(found):.1f} | {mean(error):.0f}% |"
        )
    lines += ["", verdict(runs), ""]
    lines += [
        "J = 1, all users alike, 100,000 rounds, otherwise the same. Theory puts one learner first, those who share",
        "now and then next, and those who never share last:",
        "",
        "| system | regret | exchanges |",
        "|---|---|---|",
    ]
    for name in ALIKE:
        mine = last(runs, name, 1)
        regret, exchanges = ([run["curve"][-1][which] for run in mine] for which in (1, 2))
        lines.append(f"| {name} | {spread(regret)} | {spread(exchanges)} |")
    return "\n".join(lines) + "\n"


def seeds(runs: list[dict[str, Any]]) -> int:
    """How many seeds all systems have been played with."""
    names = (*HOMOGENEOUS, *HETEROGENEOUS, *BESIDE)
    return min([*(len(last(runs, name, 10)) for name in names), *(len(last(runs, name, 1)) for name in ALIKE)])


def verdict(runs: list[dict[str, Any]]) -> str:
    """Whether every system that lets users differ ends below every one that does not, seed by seed."""
    final = {
        name: [run["curve"][-1][1] for run in last(runs, name, 10)] for name in (*HOMOGENEOUS, *HETEROGENEOUS, *BESIDE)
    }
    best = [min(final[name][seed] for name in HOMOGENEOUS) for seed in range(seeds(runs))]
    above = [name for name in HETEROGENEOUS if any(final[name][seed] >= best[seed] for seed in range(seeds(runs)))]
    below = [name for name in HETEROGENEOUS if name not in above]
    said = f"In every seed, {', '.join(below)} end below every system that takes users to be alike."
    if above:
        said += f" Not so {', '.join(above)}."
    if "club-cascade" in above:
        mended = all(final["club-cascade at alpha_d 7"][seed] < best[seed] for seed in range(seeds(runs)))
        said += (
            " With its authors' constants, club-cascade has not deleted an edge by then, so it is still one learner for"
            f" everybody; with alpha_d 7, the value of the paper's graph, it {'does' if mended else 'does not either'}."
        )
    alone = [name for name in below if all(final[name][s] < final["fedind"][s] for s in range(seeds(runs)))]
    return said + (
        f" Below agents that never talk (`fedind`) in every seed: {', '.join(alone) or 'none of them'}; the others pay"
        " for having shared with the wrong users at the start. What counts is also how many clusters are found:"
        " phase-fclub ends with nearly as many as there are users, so it is close to `fedind`, at many exchanges."
    )


def curve(name: str, runs: list[dict[str, Any]]) -> str:
    """The sentence and the figure of a system."""
    regret, exchanges = ([run["curve"][-1][which] for run in last(runs, name, 10)] for which in (1, 2))
    return (
        f"Measured as above: regret {spread(regret)}, exchanges {spread(exchanges)}.\n\n"
        f"![Regret and exchanges of {name}, against the other systems in grey](figures/policy-{name}.svg)\n"
    )


def draw(runs: list[dict[str, Any]]) -> None:
    """A small figure for every system."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "fedcascade", "font.size": 8, "axes.spines.top": False}
    mpl.rcParams |= {"axes.spines.right": False, "font.family": "sans-serif"}
    FIGURES.mkdir(exist_ok=True)
    for name in TABLE_1:
        _figure(name, runs)


def _figure(name: str, runs: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt
    import numpy as np

    figure, panels = plt.subplots(1, 2, figsize=(6.4, 2.1), layout="constrained")
    for other in [*(o for o in TABLE_1 if o != name), name]:
        curves = np.array([run["curve"] for run in last(runs, other, 10)])
        rounds = curves[0, :, 0] / 1000
        mine = other == name
        style = {"color": "#0b6fa4", "lw": 1.6} if mine else {"color": "#b8b8b8", "lw": 0.7}
        for which, panel in enumerate(panels, start=1):
            middle = curves[:, :, which].mean(axis=0)
            if which == 1 or middle[-1] > 0:  # no exchanges, no line
                panel.plot(rounds, middle, **style)
            if mine and which == 1:
                width = curves[:, :, 1].std(axis=0, ddof=1)
                panel.fill_between(rounds, middle - width, middle + width, color="#0b6fa4", alpha=0.25, lw=0)
    for panel, title in zip(panels, ("expected regret", "exchanges"), strict=True):
        panel.set_title(title, loc="left", fontsize=8)
        panel.set_xlabel("rounds, in thousands")
        panel.set_xlim(0, None)
    panels[0].set_ylim(0, None)
    panels[1].set_yscale("log")
    silent = all(run["curve"][-1][2] == 0 for run in last(runs, name, 10))
    if silent:
        panels[1].text(0.98, 0.04, f"{name}: none", transform=panels[1].transAxes, ha="right", color="#0b6fa4")
    figure.savefig(FIGURES / f"policy-{name}.svg", metadata={"Date": None})
    if "--png" in sys.argv:
        figure.savefig(FIGURES / f"policy-{name}.png", dpi=150)
    plt.close(figure)


def main() -> None:
    """Write the page, and the figures where there is something to draw."""
    runs = json.loads(MEASURED.read_text()) if MEASURED.exists() else []
    runs = [run for run in runs if run["seed"] < seeds(runs)]  # only seeds that every system has been played with
    before = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    PAGE.write_text(page(before, runs), encoding="utf-8")
    if runs:
        draw(runs)
    print(f"wrote {PAGE.relative_to(ROOT)}{' and its figures' if runs else ', measured passages as they were'}")


if __name__ == "__main__":
    main()
