"""A catalogue of films for the demo's shop window, with named features and titles derived from them.

Features are those of the synthetic environment, (z / ||z||, 1) / sqrt(2); every coordinate of z has a name.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedcascade.environments.clustered import lift
from fedcascade.numerics import streams
from fedcascade.numerics.grid import round_to_grid

FILMS = 240
# Each attribute: its name, its opposite, and words for the titles of either kind.
ATTRIBUTES: tuple[tuple[str, str, str, str], ...] = (
    ("funny", "serious", "Crooked Cheerful Clumsy Giddy", "Solemn Silent Heavy Last"),
    ("tense", "calm", "Burning Hunted Broken Midnight", "Gentle Slow Quiet Golden"),
    ("fantastic", "true to life", "Enchanted Electric Lunar Hollow", "Ordinary Honest Paper Sunday"),
    ("romantic", "unsentimental", "Tender Scarlet Distant Promised", "Iron Bitter Empty Cold"),
    ("modern", "classic", "Neon Digital Vertical Plastic", "Velvet Silver Copper Dusty"),
    ("epic", "intimate", "Endless Thousandfold Northern Wild", "Little Narrow Single Hidden"),
)
NOUNS: tuple[tuple[str, str], ...] = (
    ("Wedding Parrot Inspector Holiday", "Verdict Winter Witness Debt"),
    ("Escape Signal Alibi Countdown", "Orchard Afternoon Tide Garden"),
    ("Dragon Portal Comet Labyrinth", "Kitchen Street Harvest Neighbour"),
    ("Letter Waltz Summer Kiss", "Machine Contract Border Ledger"),
    ("Network Satellite Mirror Tower", "Theatre Carriage Piano Lighthouse"),
    ("Empire Voyage Horizon Crown", "Doorway Window Table Promise"),
)
DIMENSION = len(ATTRIBUTES) + 1


@dataclass(frozen=True)
class Film:
    """A title, and the amount of each attribute, from -1 to 1."""

    title: str
    amounts: tuple[float, ...]

    def describe(self, most: int = 3) -> list[str]:
        """Describe the film in words, strongest attribute first.

        >>> Film("A film", (0.1, -0.9, 0.3, 0.0, 0.0, 0.2)).describe(2)
        ['very calm', 'a little fantastic']
        """
        order = sorted(range(len(self.amounts)), key=lambda place: -abs(self.amounts[place]))
        return [_describe_amount(place, self.amounts[place]) for place in order[:most]]


def _describe_amount(place: int, amount: float) -> str:
    """Name an attribute and its degree, or its opposite if the amount is negative."""
    degree = "a little " if abs(amount) < 0.35 else "" if abs(amount) < 0.6 else "very "
    return degree + ATTRIBUTES[place][0 if amount >= 0 else 1]


def draw_films(seed: int, count: int = FILMS) -> tuple[list[Film], NDArray[np.float32]]:
    """Draw a catalogue and its features, one row per film."""
    normals = np.empty((len(ATTRIBUTES), count), np.float32)
    streams.draw_normals_into(np.uint64(seed), streams.THETA, 1, normals)
    units = (normals / np.linalg.norm(normals, axis=0)).T.astype(np.float64)
    used_titles: set[str] = set()
    films = [Film(_choose_title(unit, number, used_titles), tuple(unit.tolist())) for number, unit in enumerate(units)]
    return films, round_to_grid(lift(units))


def _choose_title(unit: NDArray[np.float64], number: int, used_titles: set[str]) -> str:
    """Choose an unused title from words of the two strongest attributes."""
    first, second = (int(place) for place in np.argsort(-np.abs(unit))[:2])
    adjectives = ATTRIBUTES[first][2 if unit[first] >= 0 else 3].split()
    nouns = NOUNS[second][0 if unit[second] >= 0 else 1].split()
    pairs = len(adjectives) * len(nouns)
    for step in range(pairs):
        at = (5 * number + 7 * step) % pairs
        title = f"The {adjectives[at // len(nouns)]} {nouns[at % len(nouns)]}"
        if title not in used_titles:
            break
    else:
        title = f"{title} {number}"
    used_titles.add(title)
    return title
