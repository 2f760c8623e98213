"""``fedcascade.compare``, ``trace.plot()`` and the short forms of policies, environments and traces."""

import numpy as np
import pytest
from matplotlib.figure import Figure

import fedcascade
from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.experiments.compare import PolicyRuns

ENVIRONMENT = Synthetic(users=6, clusters=2, dimension=4, items=10, seed=3)
ROUNDS = 500
NAMES = ["known-clusters", "fedind"]


@pytest.fixture(scope="module")
def runs() -> PolicyRuns:
    return fedcascade.compare(ENVIRONMENT, NAMES, seeds=3, rounds=ROUNDS)


def test_the_table_equals_simulations_one_by_one(runs: PolicyRuns) -> None:
    assert (runs.seeds, runs.against) == ((3, 4, 5), "fedind")
    traces = {
        name: [simulate(ENVIRONMENT.with_seed(seed), POLICIES[name], rounds=ROUNDS) for seed in (3, 4, 5)]
        for name in NAMES
    }
    regret = {name: np.array([trace.regret for trace in traces[name]]) for name in NAMES}
    for row, name in zip(runs.table.to_dicts(), NAMES, strict=True):
        gaps = regret[name] - regret["fedind"]
        assert (row["policy"], row["beta"]) == (name, str(POLICIES[name].constants()["beta"]))
        assert row["regret"] == pytest.approx(regret[name].mean())
        assert row["difference"] == pytest.approx(gaps.mean())
        assert row["difference_95"] == pytest.approx(4.3027 * gaps.std(ddof=1) / 3**0.5, rel=1e-4)  # Student's t
        assert row["exchanges"] == np.mean([trace.communications() for trace in traces[name]])
        assert row["clustering_error"] == pytest.approx(np.mean([trace.clustering_error for trace in traces[name]]))
    assert runs.table["difference"][0] != 0.0


def test_the_figure_has_a_curve_and_a_band_for_each_policy(runs: PolicyRuns) -> None:
    figure = runs.figure
    assert isinstance(figure, Figure)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == NAMES
    assert len(axes.collections) == len(NAMES)
    for line, mean in zip(axes.lines, runs.table["regret"], strict=True):
        points = np.asarray(line.get_xydata())
        assert points[0].tolist() == [0.0, 0.0]
        assert points[-1] == pytest.approx([ROUNDS, mean])
    html = runs._repr_html_()
    assert "<svg" in html
    assert "<table" in html


def test_two_seeds_give_no_interval() -> None:
    few = fedcascade.compare(ENVIRONMENT, {"mine": POLICIES["fedind"]}, seeds=[0, 7], rounds=50)
    assert (few.against, few.seeds) == ("mine", (0, 7))
    assert few.table["regret_95"].to_list() == [None]
    assert len(few.figure.axes[0].collections) == 0


@pytest.mark.parametrize(
    ("policies", "options", "message"),
    [
        (["fedind", "fedind"], {}, "distinct names"),
        ([], {}, "distinct names"),
        (["fedind"], {"seeds": 0}, "at least one seed"),
        (["fedind"], {"against": "fedlinucb"}, "fedlinucb"),
        (["fedin"], {}, "fedind"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(policies: list[str], options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fedcascade.compare(ENVIRONMENT, policies, rounds=50, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("quantity", ["regret", "exchanges", "clustering_error"])
def test_a_trace_plots_its_own_totals(quantity: str) -> None:
    trace = simulate(ENVIRONMENT, POLICIES["fedc3ucb-h"].with_constants(beta=1.0), rounds=ROUNDS)
    (line,) = trace.plot(quantity).axes[0].lines
    end = trace.communications() if quantity == "exchanges" else getattr(trace, quantity)
    assert np.asarray(line.get_xydata())[-1] == pytest.approx([ROUNDS, end])


def test_a_trace_refuses_an_unknown_quantity() -> None:
    with pytest.raises(ValueError, match="regret"):
        simulate(ENVIRONMENT, POLICIES["fedind"], rounds=50).plot("regrets")


def test_short_forms_name_what_matters() -> None:
    assert repr(ENVIRONMENT) == "Synthetic(users=6, clusters=2, dimension=4, items=10, seed=3)"
    assert repr(POLICIES["fedind"].with_constants(beta=0.7)).startswith("<Policy fedind: lambda=4.0, ")
    assert "beta=0.7" in repr(POLICIES["fedind"].with_constants(beta=0.7))
    trace = simulate(ENVIRONMENT, POLICIES["fedind"], rounds=50)
    assert repr(trace) == f"<Trace fedind: rounds=50, regret={trace.regret:.1f}, exchanges=0, groups=6>"
