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
from fedcascade.experiments.plan import resize_plan
from fedcascade.experiments.reports import figures, html, paper_report, summary
from fedcascade.experiments.results import Results, read_results
from fedcascade.experiments.runner import execute, make_local_scheduler

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
        assert line.regret.half_width == pytest.approx(12.706 * own.std(ddof=1) / np.sqrt(2))
        assert summary.format_mean(line.regret) in written


def test_the_same_results_give_the_same_files(small_results: Results) -> None:
    def files() -> dict[Path, bytes]:
        summary.write_report(small_results)
        return {path: path.read_bytes() for path in sorted((small_results.folder / "figures").iterdir())}

    assert files() == files()


def test_a_band_spans_the_runs(small_results: Results) -> None:
    figure = figures.plot_curves(small_results.curves, "regret", "title", ["fedind"])
    own = small_results.curves.filter(pl.col("label") == "fedind").pivot("seed", index="round", values="regret")
    runs = own.sort("round").drop("round").to_numpy()
    (axes,) = figure.axes
    assert np.allclose(axes.lines[0].get_ydata(), runs.mean(axis=1))
    band = np.asarray(axes.collections[0].get_paths()[0].vertices)
    assert {*runs.min(axis=1), *runs.max(axis=1)} <= set(band[:, 1])


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
            assert (row["mean"], row["half_interval_95"]) == (claim.ours.mean, claim.ours.half_width)
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
