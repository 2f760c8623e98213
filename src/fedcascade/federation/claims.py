"""The paper's Tables 1 and 2: claims about each policy, and their sources."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class TableRow:
    """A row of Tables 1 and 2."""

    arms: str
    regret: str  # order
    communication: str  # order
    source: str
    title: str
    differs: str  # differences between this policy and its source


PAPER = "Federated contextual cascading bandits with asynchronous communication and heterogeneous users (the paper)"
ASYNC_LINUCB = "Asynchronous upper confidence bound algorithms for federated linear bandits"

TABLE_1: Mapping[str, TableRow] = {
    "oful": TableRow("single", "O(d sqrt(T) log T)", "none",
        "Abbasi-Yadkori, Pal, Szepesvari 2011", "Improved algorithms for linear stochastic bandits",
        "beta is a constant, as in the paper's experiments; the source's is `--beta theory`"),
    "c3-ucb": TableRow("cascade", "O(d sqrt(K T) log T)", "none",
        "Li, Wang, Zhang, Chen 2016", "Contextual combinatorial cascading bandits",
        "position discounts are powers of one constant, 1 by default as in the paper; with another one "
        "(`--set c3-ucb.discount=0.9`) they are rounded to the grid of features, and regret does not discount "
        "clicks, where the source discounts the reward too"),
    "dislinucb": TableRow("single", "O(d sqrt(T) log^2 T)", "O(d |U|^1.5)",
        "Wang, Hu, Chen, Wang 2019", "Distributed bandit learning",
        "one agent is active in a round, not all; the budget counts items examined since the last synchronisation"),
    "club-cascade": TableRow("cascade", "O(d sqrt(J K T) log T)", "O(T)",
        "Li, Zhang 2018", "Online clustering of contextual cascading bandits",
        "constants are computed from the sizes of a run. The paper prints F(T) = sqrt((1 + ln(1 + T)) / (1 + T)); the "
        "authors' code divides sqrt(1 + ln(1 + T)) by 1 + T, and so do we (`width`)"),
    "async-linucb": TableRow("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021", ASYNC_LINUCB,
        "a push carries the whole sum instead of the missing part, which is equivalent; as in the authors' "
        "code, an agent shows one more list before it uses a push (their text does not specify this); beta is the "
        "self-normalised bound for all data of the agent and theta of length at most 1"),
    "async-linucb-am": TableRow("single", "O(d sqrt(|U| T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021", ASYNC_LINUCB,
        "both parts use one feature vector; the beta of the shared part scales both widths; both parts are "
        "regularised, so no pseudo-inverse is needed"),
    "phase-fclub": TableRow("single", "O(d |U| sqrt(J T) log^1.5 T)", "O(d |U| J log T)",
        "Liu, Zhao, Yu, Li, Lui 2022", "Federated online clustering of bandits",
        "no noise is added for privacy; the messages of a phase start count: one upload per local cluster and "
        "one push per part of a merged one; clusters are merged along chains of close centres; widths count "
        "rounds, each with up to K items"),
    "fedlinucb": TableRow("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "He, Wang, Min, Gu 2022",
        "A simple and provably efficient algorithm for asynchronous federated bandits",
        "lambda and beta are the paper's for all policies; an upload with its download counts once"),
    "fedc3ucb-h": TableRow("cascade", "O(d sqrt(J K T) log T)", "O(d |U|^2 log T + log^2 T)", "Yang et al.", PAPER,
        "an upload is added before the server answers (`order`), which the pseudo-code leaves open"),
}  # fmt: skip
