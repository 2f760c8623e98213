"""The command ``vectors``: cases that an agent in another language must agree with."""

from pathlib import Path
from typing import Annotated

from fedcascade.cli.options import Whole, option


def vectors(
    *,
    out: Annotated[Path, option("Folder to write to: one JSON file for each kind of case.")],
    seed: Annotated[Whole, option("Names the cases.")] = 1,
) -> None:
    """Write what the Python agent does, case by case, for agents in other languages to agree with.

    Example: fedcascade vectors --out vectors
    """
    from fedcascade.testing.vectors.files import write_vectors

    counts = write_vectors(out, seed)
    for kind, count in counts.items():
        print(f"{kind:<12} {count:>4}")
    print(f"{'in all':<12} {sum(counts.values()):>4}")
