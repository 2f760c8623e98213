"""What is claimed of each system in the paper's Tables 1 and 2, and where it comes from.

How agents speak and whether users may differ follow from a policy's parts: ``Policy.agents`` and ``Policy.users``.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TableRow:
    """A row of Tables 1 and 2: what is chosen in a round, orders of regret and communication, who and what.

    ``differs`` says where the policy here differs from the source, and why.
    """

    arms: str
    regret: str
    communication: str
    source: str
    title: str
    differs: str


PAPER = "Federated contextual cascading bandits with asynchronous communication and heterogeneous users (the paper)"
ASYNC_LINUCB = "Asynchronous upper confidence bound algorithms for federated linear bandits"

TABLE_1: Mapping[str, TableRow] = {
    "oful": TableRow("single", "O(d sqrt(T) log T)", "none",
        "Abbasi-Yadkori, Pal, Szepesvari 2011", "Improved algorithms for linear stochastic bandits",
        "beta is a constant, as in the paper's experiments; the source's is `--beta theory`"),
    "c3-ucb": TableRow("cascade", "O(d sqrt(K T) log T)", "none",
        "Li, Wang, Zhang, Chen 2016", "Contextual combinatorial cascading bandits",
        "discounts of positions are powers of one constant, which is 1 as in the paper, so that all count "
        "alike; with another (`--set c3-ucb.discount=0.9`) they are rounded to the grid of features, and "
        "regret still counts a click alike wherever it comes, where the source discounts the reward too"),
    "dislinucb": TableRow("single", "O(d sqrt(T) log^2 T)", "O(d |U|^1.5)",
        "Wang, Hu, Chen, Wang 2019", "Distributed bandit learning",
        "one agent is active in a round, not all; the budget counts items examined since the last time"),
    "club-cascade": TableRow("cascade", "O(d sqrt(J K T) log T)", "O(T)",
        "Li, Zhang 2018", "Online clustering of contextual cascading bandits",
        "nowhere that we know of; its constants are worked out from the sizes of a run"),
    "async-linucb": TableRow("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021", ASYNC_LINUCB,
        "a push carries the whole sum instead of what is missing, which says the same; an agent "
        "decides with a push from its next round on, and whether the source's agent does so or only "
        "after it has learned once more could not be verified; beta is the self-normalised bound of "
        "all that the agent decides with, for theta of length at most 1"),
    "async-linucb-am": TableRow("single", "O(d sqrt(|U| T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021", ASYNC_LINUCB,
        "one feature vector serves both parts; one beta, that of the shared part, scales both "
        "widths; both parts are regularised, so that no pseudo-inverse is needed"),
    "phase-fclub": TableRow("single", "O(d |U| sqrt(J T) log^1.5 T)", "O(d |U| J log T)",
        "Liu, Zhao, Yu, Li, Lui 2022", "Federated online clustering of bandits",
        "no noise is added for privacy; what a phase start sends is counted, one upload for each "
        "local cluster and one push for each part of a merged one; clusters are merged along chains "
        "of close centres; widths go by rounds, of which each teaches up to K items"),
    "fedlinucb": TableRow("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "He, Wang, Min, Gu 2022",
        "A simple and provably efficient algorithm for asynchronous federated bandits",
        "lambda and beta are the paper's for all systems; an upload with its download counts once"),
    "fedc3ucb-h": TableRow("cascade", "O(d sqrt(J K T) log T)", "O(d |U|^2 log T + log^2 T)", "Yang et al.", PAPER,
        "an upload is added before the server answers (`order`), where the pseudo-code is silent"),
}  # fmt: skip
