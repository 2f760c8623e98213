"""What is claimed of each system in the paper's Tables 1 and 2, and where it comes from.

How agents speak and whether users may differ follow from a policy's parts: ``Policy.agents`` and ``Policy.users``.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Claim:
    """A row of Tables 1 and 2: what is chosen in a round, orders of regret and communication, who and what."""

    arms: str
    regret: str
    communication: str
    source: str
    title: str


PAPER = "Federated contextual cascading bandits with asynchronous communication and heterogeneous users (the paper)"
ASYNC_LINUCB = "Asynchronous upper confidence bound algorithms for federated linear bandits"

TABLE_1: Mapping[str, Claim] = {
    "oful": Claim("single", "O(d sqrt(T) log T)", "none",
                  "Abbasi-Yadkori, Pal, Szepesvari 2011", "Improved algorithms for linear stochastic bandits"),
    "c3-ucb": Claim("cascade", "O(d sqrt(K T) log T)", "none",
                    "Li, Wang, Zhang, Chen 2016", "Contextual combinatorial cascading bandits"),
    "dislinucb": Claim("single", "O(d sqrt(T) log^2 T)", "O(d |U|^1.5)",
                       "Wang, Hu, Chen, Wang 2019", "Distributed bandit learning"),
    "club-cascade": Claim("cascade", "O(d sqrt(J K T) log T)", "O(T)",
                          "Li, Zhang 2018", "Online clustering of contextual cascading bandits"),
    "async-linucb": Claim("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021", ASYNC_LINUCB),
    "async-linucb-am": Claim("single", "O(d sqrt(|U| T) log T)", "O(d |U|^2 log T)", "Li, Wang 2021", ASYNC_LINUCB),
    "phase-fclub": Claim("single", "O(d |U| sqrt(J T) log^1.5 T)", "O(d |U| J log T)",
                         "Liu, Zhao, Yu, Li, Lui 2022", "Federated online clustering of bandits"),
    "fedlinucb": Claim("single", "O(d sqrt(T) log T)", "O(d |U|^2 log T)", "He, Wang, Min, Gu 2022",
                       "A simple and provably efficient algorithm for asynchronous federated bandits"),
    "fedc3ucb-h": Claim("cascade", "O(d sqrt(J K T) log T)", "O(d |U|^2 log T + log^2 T)", "Yang et al.", PAPER),
}  # fmt: skip
