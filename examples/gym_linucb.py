"""LinUCB for ranked lists, in twenty lines, through Gymnasium: python examples/gym_linucb.py."""

from typing import Any

import gymnasium
import numpy as np

import fedcascade.gym  # noqa: F401 (registers the environments)


class LinUCB:
    """One ridge regression per user, and the items with the highest upper confidence bounds."""

    def __init__(self, users: int, dimension: int, length: int, beta: float = 0.5) -> None:
        self.gram, self.moment = np.array([np.eye(dimension)] * users), np.zeros((users, dimension))
        self.length, self.beta = length, beta

    def act(self, observation: dict[str, Any]) -> Any:
        """Return the best list for the user that arrives."""
        items, inverse = observation["items"], np.linalg.inv(self.gram[observation["user"]])
        bonus = np.sqrt(np.einsum("ij,jk,ik->i", items, inverse, items))
        scores = items @ inverse @ self.moment[observation["user"]] + self.beta * bonus
        return np.argsort(-scores[: observation["offered"]])[: self.length]

    def learn(self, observation: dict[str, Any], info: dict[str, Any]) -> None:
        """Learn from the items that the user has looked at, and from the clicks among them."""
        seen = observation["items"][info["shown"][: info["looked"]]]
        self.gram[observation["user"]] += seen.T @ seen
        self.moment[observation["user"]] += info["clicks"][: info["looked"]] @ seen


def play(rounds: int = 5000) -> tuple[float, float]:
    """Return the regret of LinUCB, and that of random lists in the same rounds."""
    env = gymnasium.make("fedcascade/Synthetic-v0", users=5, clusters=2, dimension=5, items=20, list_length=3,
                         rounds=rounds)  # fmt: skip
    agent, regrets = LinUCB(users=5, dimension=5, length=3), [0.0, 0.0]
    env.action_space.seed(1)
    for place in range(2):
        observation, _ = env.reset(seed=1)
        truncated = False
        while not truncated:
            action = agent.act(observation) if place == 0 else env.action_space.sample()
            following, _, _, truncated, info = env.step(action)
            agent.learn(observation, info)
            regrets[place] += info["regret"]
            observation = following
    return regrets[0], regrets[1]


if __name__ == "__main__":
    learned, chance = play()
    print(f"regret of LinUCB {learned:.0f}, of random lists {chance:.0f}")
