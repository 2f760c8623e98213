"""``fedcascade data fetch`` and ``fedcascade data describe``."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from fedcascade.cli.options import FromRatings, Json, Whole, option

if TYPE_CHECKING:
    from rich.table import Table

data = App(name="data", help_format="plaintext", result_action="return_value")


@data.command
def fetch(
    name: Annotated[Literal["movielens-small", "movielens-1m"], Parameter(help="Which ratings to fetch.")],
    /,
    *,
    source: Annotated[
        str | None, option("Address of the folder that holds the archives. [the publisher's]", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None, option("Where to keep the files. [the user's cache folder]", show_default=False)
    ] = None,
    json_: Json = False,
) -> None:
    """Fetch public ratings from their publisher, once, and say where they are and what their licence is.

    Example: fedcascade data fetch movielens-small
    """
    from fedcascade.cli import terminal
    from fedcascade.data.fetch import PUBLISHER
    from fedcascade.data.fetch import fetch as fetch_dataset

    with terminal.progress_bars(terminal.BYTES) as bars:
        task = bars.add_task(name, total=None)
        found = fetch_dataset(
            name,
            source=source or PUBLISHER,
            folder=folder,
            progress=lambda there, total: bars.update(task, completed=there, total=total),
        )
    if json_:
        print(json.dumps(asdict(found) | {"ratings": str(found.ratings), "terms": str(found.terms)}))
        return
    came = "was in the cache" if found.cached else f"came from {found.url} ({found.bytes:,} bytes)"
    print(f"{name} {came}\nsha256   {found.sha256}\nlicence  {found.licence}")
    print(f"terms    {found.terms}\nratings  {found.ratings}")


@data.command
def describe(
    file: Annotated[Path, Parameter(help="A file of ratings.")],
    /,
    *,
    list_length: Annotated[Whole, option("K, the longest list an agent may show.")] = 4,
    json_: Json = False,
    world: FromRatings = FromRatings(),  # noqa: B008 (frozen)
) -> None:
    """Show what a file of ratings holds and what kind of world it makes.

    Example: fedcascade data describe ratings.csv --preset paper
    """
    from fedcascade.cli import terminal
    from fedcascade.data.describe import describe as facts_of

    ratings = world.read(file)
    facts = facts_of(ratings, world.world_of(ratings), list_length=list_length)
    if json_:
        print(json.dumps({"file": str(file), **facts}))
        return
    for table in (facts_table(file, facts), histogram_table(facts), clusters_table(facts)):
        terminal.show(table)


def facts_table(file: Path, facts: dict[str, Any]) -> "Table":
    """Sizes, density, singular values and gaps."""
    from rich.table import Table

    whole, kept, gaps = facts["ratings"], facts["matrix"], facts["gaps"]
    table = Table(title=str(file), title_justify="left", show_header=False)
    table.add_row("ratings", f"{whole['count']:,} by {whole['users']:,} users of {whole['items']:,} items")
    table.add_row("density", f"{whole['density']:.2%}")
    table.add_row("matrix", f"{kept['users']:,} most active users x {kept['items']:,} most rated items")
    table.add_row("its density", f"{kept['density']:.2%}")
    table.add_row("singular values", " ".join(f"{value:.4g}" for value in facts["singular_values"]))
    table.add_row("variance kept", f"{facts['variance_kept']:.0%}")
    if gaps["least"] is not None:
        table.add_row(
            "cluster gaps", f"least {gaps['least']:.3f}, median {gaps['median']:.3f}, most {gaps['most']:.3f}"
        )
    return table


def histogram_table(facts: dict[str, Any]) -> "Table":
    """How many ratings are how high."""
    from rich.table import Table

    table = Table(title="how high ratings are", title_justify="left")
    for name in ("rating", "count", "share"):
        table.add_column(name, justify="right")
    table.add_column("", min_width=30)
    most = max(row["count"] for row in facts["histogram"])
    for row in facts["histogram"]:
        span = f"{row['from']:g}" if row["from"] == row["to"] else f"{row['from']:.3g} to {row['to']:.3g}"
        share = row["count"] / facts["ratings"]["count"]
        table.add_row(span, f"{row['count']:,}", f"{share:.1%}", "█" * round(30 * row["count"] / most))
    return table


def clusters_table(facts: dict[str, Any]) -> "Table":
    """One line per cluster: its users, how far the nearest is, and what would be clicked."""
    from rich.table import Table

    table = Table(title="clusters, and the chance of a click", title_justify="left")
    for name in ("cluster", "users", "norm of theta", "gap to the nearest", "on the best item", "on the best list",
                 "on a random list"):  # fmt: skip
        table.add_column(name, justify="right")
    for row in facts["clusters"]:
        nearest = "" if row["nearest"] is None else f"{row['nearest']:.3f}"
        chances = (f"{row[name]:.1%}" for name in ("best_item", "best_list", "random_list"))
        table.add_row(str(row["cluster"]), f"{row['users']:,}", f"{row['norm']:.3f}", nearest, *chances)
    return table
