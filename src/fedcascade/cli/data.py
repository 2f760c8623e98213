"""``fedcascade data fetch``, ``fedcascade data describe`` and ``fedcascade data clicks``."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.table import Table

from fedcascade.cli import terminal
from fedcascade.cli.options import Json, LogOptions, RatingsFlags, Whole, option

data = App(name="data", help_format="plaintext", result_action="return_value")


@data.command
def fetch(
    name: Annotated[Literal["movielens-small", "movielens-1m"], Parameter(help="Ratings to fetch.")],
    /,
    *,
    source: Annotated[str | None, option("Address of the archives. [default: the publisher's]")] = None,
    folder: Annotated[Path | None, option("Folder for the files. [default: the user's cache folder]")] = None,
    json_: Json = False,
) -> None:
    """Fetch public ratings from their publisher into a cache, and print their path and licence.

    Example: fedcascade data fetch movielens-small
    """
    from fedcascade.data.fetch import PUBLISHER
    from fedcascade.data.fetch import fetch as fetch_dataset

    dataset = fetch_dataset(name, source=source or PUBLISHER, folder=folder)
    if json_:
        print(json.dumps(asdict(dataset) | {"ratings": str(dataset.ratings), "terms": str(dataset.terms)}))
        return
    origin = "was in the cache" if dataset.cached else f"came from {dataset.url} ({dataset.bytes:,} bytes)"
    print(f"{name} {origin}\nsha256   {dataset.sha256}\nlicence  {dataset.licence}")
    print(f"terms    {dataset.terms}\nratings  {dataset.ratings}")


@data.command
def describe(
    file: Annotated[Path, Parameter(help="A file of ratings, or a log of lists.")],
    /,
    *,
    list_length: Annotated[Whole, option("K, the longest list that an agent may show.")] = 4,
    json_: Json = False,
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
    environment: RatingsFlags = RatingsFlags(),  # noqa: B008 (frozen)
) -> None:
    """Describe a ratings file and its environment, or a log of lists and its uses.

    Example: fedcascade data describe ratings.csv --preset paper
    """
    from fedcascade.data.describe import describe as describe_ratings
    from fedcascade.data.logs.describe import describe_log

    if log_options.is_log(file):
        log = log_options.open(file)
        found = describe_log(log)
        log_options.print_notes(log)
        if json_:
            print(json.dumps({"file": str(file), **found}))
            return
        uses = terminal.make_table("possible uses", ("use", "possible"), list(found["uses"].items()))
        terminal.show(make_log_table(file, found), make_positions_table(found), uses)
        return
    ratings = environment.read(file)
    facts = describe_ratings(ratings, environment.build_from(ratings), list_length=list_length)
    if json_:
        print(json.dumps({"file": str(file), **facts}))
        return
    terminal.show(make_facts_table(file, facts), make_histogram_table(facts), make_clusters_table(facts))


@data.command
def clicks(
    file: Annotated[Path, Parameter(help="A log of lists.")],
    /,
    *,
    train: Annotated[float, option("Share of the log, from its beginning, used to fit the models.")] = 0.8,
    json_: Json = False,
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
) -> None:
    """Fit click models to a log and compare them: cascade, several clicks, position bias.

    Example: fedcascade data clicks log.parquet
    """
    from fedcascade.evaluation.click_models import compare_models

    log = log_options.open(file)
    fits = compare_models(log.batches, log.count(), train=train)
    log_options.print_notes(log)
    rows = [
        {
            "model": found.model.name,
            "perplexity": found.perplexity,
            "by_position": found.by_position.tolist(),
            "attraction": float(found.model.attraction.mean()),
            "going_on": None if found.model.going_on is None else found.model.going_on.tolist(),
            "satisfaction": None if found.model.satisfaction is None else float(found.model.satisfaction.mean()),
        }
        for found in fits
    ]
    if json_:
        print(json.dumps({"file": str(file), "models": rows}))
        return
    terminal.show(make_models_table(rows))


@data.command
def convert(
    file: Annotated[Path, Parameter(help="A log of lists, or a table of events with a row per shown item.")],
    /,
    *,
    out: Annotated[Path, option("File to write: .parquet, .csv or .jsonl.")],
    log_options: LogOptions = LogOptions(),  # noqa: B008 (frozen)
) -> None:
    """Write any log that can be read as one with usual columns, in order of time, a row per list.

    Example: fedcascade data convert events.parquet --out log.parquet
    """
    from fedcascade.data.logs import write_log

    log = log_options.open(file)
    lists = write_log(out, log.batches(), users=log.users, items=log.items)
    log_options.print_notes(log)
    print(f"{lists:,} lists of {len(log.users):,} users written to {out}")


def make_models_table(rows: Sequence[dict[str, Any]]) -> Table:
    """Make a table of click models, the best first."""
    columns = ("model", "perplexity", "by position", "mean attraction", "continues, by position", "mean satisfaction")
    lines = [
        (
            row["model"],
            f"{row['perplexity']:.4f}",
            " ".join(f"{value:.3f}" for value in row["by_position"]),
            f"{row['attraction']:.3f}",
            "" if row["going_on"] is None else " ".join(f"{value:.2f}" for value in row["going_on"]),
            "" if row["satisfaction"] is None else f"{row['satisfaction']:.3f}",
        )
        for row in rows
    ]
    return terminal.make_table("click models: perplexity on unseen lists (lower is better)", columns, lines)


def make_facts_table(file: Path, facts: dict[str, Any]) -> Table:
    """Make a table of sizes, density, singular values and gaps."""
    counts, matrix, gaps = facts["ratings"], facts["matrix"], facts["gaps"]
    rows = [
        ("ratings", f"{counts['count']:,} by {counts['users']:,} users of {counts['items']:,} items"),
        ("density", f"{counts['density']:.2%}"),
        ("matrix", f"{matrix['users']:,} most active users x {matrix['items']:,} most rated items"),
        ("its density", f"{matrix['density']:.2%}"),
        ("singular values", " ".join(f"{value:.4g}" for value in facts["singular_values"])),
        ("variance kept", f"{facts['variance_kept']:.0%}"),
    ]
    if gaps["least"] is not None:
        rows.append(("cluster gaps", ", ".join(f"{name} {gap:.3f}" for name, gap in gaps.items())))
    return terminal.make_facts_table(str(file), rows)


def make_histogram_table(facts: dict[str, Any]) -> Table:
    """Make a histogram of ratings."""
    most = max(row["count"] for row in facts["histogram"])
    rows = []
    for row in facts["histogram"]:
        span = f"{row['from']:g}" if row["from"] == row["to"] else f"{row['from']:.3g} to {row['to']:.3g}"
        share = row["count"] / facts["ratings"]["count"]
        rows.append((span, f"{row['count']:,}", f"{share:.1%}", "█" * round(30 * row["count"] / most)))
    numbers = ("rating", "count", "share")
    table = terminal.make_table("histogram of ratings", (*numbers, ""), rows, right=numbers)
    table.columns[-1].min_width = 30
    return table


def make_clusters_table(facts: dict[str, Any]) -> Table:
    """Make a table with one line per cluster: users, gap to the nearest cluster, click probabilities."""
    chances = ("best item", "best list", "random list")
    columns = ("cluster", "users", "norm of theta", "gap to the nearest", *chances)
    rows = []
    for row in facts["clusters"]:
        nearest = "" if row["nearest"] is None else f"{row['nearest']:.3f}"
        clicked = (f"{row[name.replace(' ', '_')]:.1%}" for name in chances)
        rows.append((str(row["cluster"]), f"{row['users']:,}", f"{row['norm']:.3f}", nearest, *clicked))
    return terminal.make_table("clusters, and click probabilities", columns, rows, right=columns)


def make_log_table(file: Path, facts: dict[str, Any]) -> Table:
    """Make a table of the contents of a log."""
    least, most = facts["lengths"]
    lengths = f"{least} items" if least == most else f"{least} to {most} items"
    rows = [
        ("lists", f"{facts['lists']:,} of {lengths}, to {facts['users']:,} users"),
        ("items", f"{facts['items']:,}" + (f", {facts['dimension']} features each" if facts["dimension"] else "")),
        ("clicked", f"{facts['clicked']:.2%} of lists, {facts['several_clicks']:.2%} more than once"),
        *([] if facts["reward"] is None else [("reward", f"{facts['reward']:.4f} per list")]),
        ("columns", " ".join(facts["columns"])),
        ("equal rows", f"{facts['repeated_rows']:,}"),
    ]
    if facts["least_propensity"] is not None:
        rows.append(("least propensity", f"{facts['least_propensity']:.3g}"))
    return terminal.make_facts_table(str(file), rows)


def make_positions_table(facts: dict[str, Any]) -> Table:
    """Make a table of the click rate of each position."""
    most = max(row["clicked"] for row in facts["positions"]) or 1.0
    rows = [
        (str(row["position"]), f"{row['shown']:,}", f"{row['clicked']:.2%}", "█" * round(30 * row["clicked"] / most))
        for row in facts["positions"]
    ]
    numbers = ("position", "shown", "clicked")
    return terminal.make_table("clicks by position", (*numbers, ""), rows, right=numbers)
