"""Reports: every figure is drawn, nothing is asked of any network, and a real browser shows it."""

import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedcascade.experiments import paper_claims
from fedcascade.experiments.plan_reader import read_plan
from fedcascade.experiments.reports import figures, html, paper_report, summary
from fedcascade.experiments.reports.figures import RunCurves
from fedcascade.experiments.results import Results, read_results
from fedcascade.experiments.runner import execute, make_local_scheduler, run_plan
from fedcascade.intervals import format_mean

from ..conftest import SMALL, resize_plan

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BEGINNINGS = {"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}


class References(HTMLParser):
    """Collects what a page would load or leads to, but for the glossary, and counts its drawings."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.drawings = 0

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.drawings += tag == "svg"
        if tag in {"script", "link", "img", "iframe", "object", "embed"}:
            self.loaded.append(tag)
        for name, value in attributes:
            is_inside = (value or "").startswith("#") or (tag, value) == ("a", html.GLOSSARY)
            if name in {"src", "href", "xlink:href"} and not is_inside:
                self.loaded.append(f"{name}={value}")


def read(path: Path) -> References:
    references = References()
    references.feed(path.read_text(encoding="utf-8"))
    return references


@pytest.fixture(scope="session")
def paper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's evaluation in 300 rounds a run."""
    folder = tmp_path_factory.mktemp("paper")
    execute(
        [resize_plan(plan, rounds=300) for plan in paper_claims.load_paper_plans(runs=2)],
        folder,
        make_local_scheduler(workers=2),
        lambda _: None,
    )
    paper_report.write_report(read_results(folder))
    return folder


def test_any_results_folder_has_a_report(small_results: Results) -> None:
    path = summary.write_report(small_results)
    page = read(path)
    assert page.drawings == 3
    assert page.loaded == []
    for quantity in figures.QUANTITIES:
        for kind in figures.FORMATS:
            file = small_results.folder / "figures" / f"small-j---3-{quantity.replace('_', '-')}.{kind}"
            assert file.read_bytes().startswith(BEGINNINGS[kind])


def test_the_numbers_of_the_table_are_those_of_the_runs(small_results: Results) -> None:
    written = summary.write_report(small_results).read_text(encoding="utf-8")
    for line in summary.summarise_policies(small_results):
        own = small_results.runs.filter(pl.col("label") == line.label)["regret"].to_numpy()
        assert line.regret.mean == pytest.approx(own.mean())
        assert line.regret.half_width == pytest.approx(np.inf)
        assert format_mean(line.regret) in written


def test_the_same_results_give_the_same_files(small_results: Results) -> None:
    def files() -> dict[Path, bytes]:
        summary.write_report(small_results)
        return {path: path.read_bytes() for path in sorted((small_results.folder / "figures").iterdir())}

    assert files() == files()


def make_curves(*labels: str, runs: int = 4) -> dict[str, RunCurves]:
    luck = np.random.default_rng(0)
    return {label: RunCurves(np.arange(1, 6) * 100, luck.random((runs, 5)).cumsum(axis=1)) for label in labels}


def test_a_band_is_the_interval_of_the_mean_and_a_total_starts_at_zero() -> None:
    curves = make_curves("fedind")
    (axes,) = figures.plot_curves(curves, "regret", "title").axes
    values = curves["fedind"].values
    mean, half = values.mean(axis=0), 3.182 * values.std(axis=0, ddof=1) / 2
    assert np.allclose(axes.lines[0].get_ydata(), [0.0, *mean])
    assert axes.lines[0].get_xdata().tolist() == [0, 100, 200, 300, 400, 500]  # type: ignore[union-attr]
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)[:, 1]
    for edge in (*np.maximum(mean - half, 0.0), *(mean + half)):
        assert np.isclose(band, edge).any()
    (axes,) = figures.plot_curves(curves, "clustering_error", "title").axes
    assert np.allclose(axes.lines[0].get_ydata(), mean)  # an error does not start at zero


def test_two_runs_have_no_band() -> None:
    (axes,) = figures.plot_curves(make_curves("fedind", runs=2), "regret", "title").axes
    assert not axes.collections


def test_the_legend_is_outside_of_the_axes() -> None:
    figure = figures.plot_curves(
        make_curves(*(f"policy {place} beta=0.5 alpha={place}" for place in range(8))), "regret", "x"
    )
    figure.draw_without_rendering()
    (legend,), (axes,) = figure.legends, figure.axes
    assert not legend.get_window_extent().overlaps(axes.get_window_extent())
    assert axes.get_window_extent().height > 150 * figure.dpi / 100
    with pytest.raises(ValueError, match="at most 8 curves, got 9"):
        figures.plot_curves(make_curves(*"abcdefghi"), "regret", "x")


SWEEP = (
    SMALL.replace("6_000", "60").replace("checkpoints = 12", "checkpoints = 3")
    + """
[[policies]]
name = "fedlinucb"
label = "swept"
constants = { lambda = 4.0 }
grid = { alpha_c = [0.1, 1.0, 5.0, 20.0], beta = [0.1, 0.5, 1.0, 2.0, 9.0] }
"""
)


def test_a_grid_of_two_constants_is_a_heat_map_with_its_best_cell(tmp_path: Path) -> None:
    found = run_plan(read_plan(SWEEP), tmp_path, workers=1)
    page = summary.write_report(found)
    names = {file.stem for file in (tmp_path / "figures").iterdir()}
    assert {name for name in names if "grid" in name} == {
        f"small-j---3-swept-grid-{quantity.replace('_', '-')}" for quantity in figures.QUANTITIES
    }
    swept = found.runs.filter(pl.col("label").str.starts_with("swept")).group_by("label").agg(pl.col("regret").mean())
    best = swept.sort("regret")["label"][0]
    text = page.read_text(encoding="utf-8")
    assert f"the frame marks the least regret: {best}." in text
    assert read(page).drawings == 6  # three heat maps, and three figures with the curves of four policies
    assert text.count(f">{best}</text>") == 3


def test_every_colour_of_a_figure_has_one_for_dark_pages() -> None:
    style = html.STYLE.partition("prefers-color-scheme: dark")[2]
    used = {*figures.COLOURS, *(value for value in figures.STYLE.values() if str(value).startswith("#"))}
    assert [colour for colour in used if f"--x{colour[1:].lower()}: #" not in style] == []
    drawing = html.render_figure(figures.render_svg(figures.plot_curves(make_curves("a"), "regret", "t"), "n"), "c")
    assert "var(--xd55e00, #d55e00)" in drawing


def test_the_paper_report_is_whole_and_needs_nothing_else(paper_folder: Path) -> None:
    path = paper_folder / "report.html"
    page, text = read(path), path.read_text(encoding="utf-8")
    assert page.drawings == 4
    assert page.loaded == []
    assert {file.name for file in (paper_folder / "figures").iterdir()} == {
        f"figure-1{letter}.{kind}" for letter in "abcd" for kind in figures.FORMATS
    }
    for words in ("generated ratings", "alpha_d = 7.0", "beta = 10.5", "seeds 0, 1", "numba", "not comparable",
                  "half of the 95% interval of a mean", "same direction in"):  # fmt: skip
        assert words in text
    assert "standard deviation" not in text


def test_the_claims_are_there_as_json_with_half_intervals(paper_folder: Path) -> None:
    described = json.loads((paper_folder / "claims.json").read_text(encoding="utf-8"))
    claims = paper_claims.judge_claims(read_results(paper_folder))
    assert "95%" in described["plus_minus"]
    assert sum(row["strict"] for row in described["claims"]) == len(paper_claims.STRICT)
    for row, claim in zip(described["claims"], claims, strict=True):
        assert (row["where"], row["claim"], row["verdict"]) == (claim.place, claim.text, claim.verdict)
        if claim.ours.runs > 1:
            assert (row["mean"], row["half_interval_95"]) == (claim.ours.mean, None)  # two runs have no interval
    # In 300 rounds nobody is placed: such a claim has no value.
    assert [row["mean"] for row in described["claims"] if row["unit"] == "rounds"] == [None, None]


def test_the_paper_report_says_where_ratings_come_from() -> None:
    plans = paper_claims.load_paper_plans(quick=True, ratings=Path("ratings.csv"))
    assert "ratings file ratings.csv" in paper_report.describe_ratings(plans)
    assert "left out" in paper_report.describe_ratings(paper_claims.load_paper_plans(quick=True))


def test_text_is_escaped() -> None:
    assert html.render_table(("<b>",), [("a & b",)]).count("&lt;b&gt;") == 1
    assert "a &amp; b" in html.render_table(("x",), [("a & b",)])


FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    "--host-resolver-rules=MAP * ~NOTFOUND",  # the browser itself stays off the network, too
    "--enable-logging=stderr",
)
WATCH = """<script>addEventListener("load", () => document.documentElement.dataset.loaded =
performance.getEntriesByType("resource").map(entry => entry.name).join(" "))</script></body>"""


def in_browser(path: Path, profile: Path, *options: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={profile}", *options, path.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def loaded(text: str, folder: Path) -> str:
    """What a browser loads for a page, which has to let a script watch."""
    watched = folder / "watched.html"
    watched.write_text(text.replace('http-equiv="Content-Security-Policy"', "").replace("</body>", WATCH))
    shown = in_browser(watched, folder / "profile", "--dump-dom").stdout
    return shown.partition('data-loaded="')[2].partition('"')[0] if "data-loaded" in shown else "nobody watched"


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_real_browser_draws_every_figure(paper_folder: Path, tmp_path: Path) -> None:
    shown = in_browser(paper_folder / "report.html", tmp_path / "a", "--dump-dom")
    assert shown.stdout.count("<svg") == 4
    assert "CONSOLE" not in shown.stderr  # what the browser has to complain about would be there
    picture = tmp_path / "report.png"
    in_browser(paper_folder / "report.html", tmp_path / "b", "--window-size=1150,2400", f"--screenshot={picture}")
    colours = drawn_colours(picture)
    assert {colour for colour in figures.COLOURS[:5] if colour not in colours} == set()


@pytest.mark.parametrize("width", [320, 400, 1280])
def test_a_page_is_no_wider_than_the_screen(browser: Any, paper_folder: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.goto((paper_folder / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


def test_figures_are_dark_where_the_page_is(browser: Any, paper_folder: Path, tmp_path: Path) -> None:
    from matplotlib.image import imread

    means = {}
    for scheme in ("light", "dark"):
        page = browser.new_page(viewport={"width": 400, "height": 800}, color_scheme=scheme)
        page.goto((paper_folder / "report.html").as_uri())
        page.locator("figure svg").first.screenshot(path=tmp_path / f"{scheme}.png")
        means[scheme] = imread(tmp_path / f"{scheme}.png")[..., :3].mean()
        page.close()
    assert means["light"] > 0.8
    assert means["dark"] < 0.3


@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")
def test_a_real_browser_loads_nothing_else(paper_folder: Path, tmp_path: Path) -> None:
    text = (paper_folder / "report.html").read_text(encoding="utf-8")
    assert loaded(text, tmp_path) == ""
    elsewhere = "http://127.0.0.1:9/picture.png"
    assert loaded(text.replace("</main>", f'<img src="{elsewhere}"></main>'), tmp_path) == elsewhere


def drawn_colours(picture: Path) -> set[str]:
    """The colours of a picture's pixels."""
    from matplotlib.image import imread

    pixels = (imread(picture)[..., :3] * 255).round().astype(np.uint32)
    packed = np.unique(pixels @ np.array([65536, 256, 1], np.uint32))
    return {f"#{number:06X}" for number in packed}
