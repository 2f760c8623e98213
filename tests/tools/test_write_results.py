"""Tables of the page of results come from stored results, and everything else on it stays."""

from pathlib import Path

import pytest
import write_results
from write_results import PAGE, render_claims, render_results, render_table_1, replace_section

from fedcascade.experiments.paper_claims import load_paper_plans
from fedcascade.experiments.plan_reader import read_plan
from fedcascade.experiments.results import read_results
from fedcascade.experiments.runner import execute, make_local_scheduler

from ..experiments.test_paper_claims import make_results

PLAN = """
name = "small"
title = "Small"
rounds = 20
checkpoints = 5
seeds = 2
{compare}

[[environments]]
name = "six"
kind = "synthetic"
users = 6
clusters = 2
dimension = 4
items = 10

[[policies]]
name = ["fedlinucb", "fedind"]
"""


def store_results(folder: Path, compare: str) -> Path:
    execute([read_plan(PLAN.format(compare=compare))], folder, make_local_scheduler(workers=1), lambda progress: None)
    return folder


def test_a_plan_that_compares_gives_shares_and_another_gives_totals(tmp_path: Path) -> None:
    shares = render_results(read_results(store_results(tmp_path / "a", 'compare = { against = ["fedind"] }')))
    assert shares.startswith("`fedcascade experiment small`: 4 runs, 80 rounds")
    assert (
        "As a share of `fedind`, with the 95% interval:\n\n| where | regret |\n|---|---:|\n| six: fedlinucb |" in shares
    )
    totals = render_results(read_results(store_results(tmp_path / "b", "")))
    assert "| six: fedlinucb |" in totals
    assert "| six: fedind |" in totals


def test_the_paper_s_claims_have_a_verdict_each() -> None:
    claims = render_claims(make_results(load_paper_plans()))
    assert "| J = 10: FedC3UCB-H: less regret than FedLinUCB | 82% | 75.0 ± 0.2% | confirmed |" in claims


def test_the_page_changes_between_the_marks_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- results:small -->\nold\n<!-- end -->\nafter\n", encoding="utf-8")
    monkeypatch.setattr(write_results, "PAGE", page)
    monkeypatch.setattr(write_results, "ROOT", tmp_path)
    monkeypatch.setattr(write_results, "TABLE_1", tmp_path / "none.json")
    monkeypatch.setattr("sys.argv", ["write_results.py", str(store_results(tmp_path / "results", ""))])
    write_results.main()
    written = page.read_text("utf-8")
    assert written.startswith("before\n<!-- results:small -->\n`fedcascade experiment small`")
    assert written.endswith("<!-- end -->\nafter\n")
    assert "old" not in written


def test_results_without_a_place_on_the_page_are_refused() -> None:
    with pytest.raises(ValueError, match="no line '<!-- results:other -->'"):
        replace_section(PAGE.read_text("utf-8"), "other", "")


def test_table_1_has_a_row_for_each_policy() -> None:
    run = {"name": "oful", "clusters": 10, "seed": 0, "found": 1, "error": 1.0, "curve": [[10, 5.0, 0]]}
    assert "| oful | 5.0 | 0.0 | 1.0 | 100% |" in render_table_1([run])
