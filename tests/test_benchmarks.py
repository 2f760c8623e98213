"""The scripts in benchmarks/ still fit what they measure: each can be loaded, and set up on small sizes."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedcascade import POLICIES, Ratings, Synthetic, simulate
from fedcascade.environments.matrices import generate_ratings
from fedcascade.experiments.plan_reader import load_plan
from fedcascade.federation.messages import Cause, Upload
from fedcascade.federation.triggers import Occasion
from fedcascade.learning.ridge import Ridge
from fedcascade.learning.statistics import Statistics
from fedcascade.service.server.state import replay_log
from fedcascade.service.store.open import open_store

FOLDER = Path(__file__).parents[1] / "benchmarks"
LIBRARIES = ("peers", "plain_numpy", "plain_systems", "triggers")  # what scripts use
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


@pytest.fixture(autouse=True)
def _beside_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts import each other as they do when run."""
    monkeypatch.syspath_prepend(str(FOLDER))


def script(name: str) -> ModuleType:
    """A script as a module; what other tests load under such a name is left alone."""
    sys.modules.pop(name, None)
    return import_module(name)


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_can_be_loaded(name: str) -> None:
    assert callable(getattr(script(name), "main", None)) or name in LIBRARIES


@pytest.mark.parametrize("system", ["fedc3ucb-h", "fedind"])
def test_the_profile_sets_up_its_loops(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    profile = script("profile_round")
    monkeypatch.setattr(profile, "WARM_UP", 64)
    with ThreadPoolExecutor(1) as pool:
        engine = profile.warm_engine(system, pool)
        loops = profile.list_loops(engine, 65)
        assert len(loops) == 10
        *_, whole_window = loops.values()
        whole_window()
    assert engine.driver.packed.counts[:, 3].sum() == 64 + profile.ROUNDS


def test_every_contestant_plays_a_slice() -> None:
    engines = script("engines")
    found = [one for one in engines.list_contestants(0.01) if one.name == engines.NUMPY or "exact" in one.name]
    taken = engines.take_turns(found, 2)
    assert all(part.rounds > 0 and part.seconds > 0 for slices in taken.values() for part in slices)
    assert all(np.isfinite(ratio) and ratio > 0 for ratio in engines.show_contest(taken).values())


def test_every_job_of_the_tables_names_a_known_policy() -> None:
    assert all(job.build_policy().name for job in script("table1").list_jobs())
    assert {planned.policy for planned in load_plan(FOLDER / "phases.toml").policies} == {"phase-fclub"}
    assert "paper-rayleigh" in {planned.policy for planned in load_plan(FOLDER / "triggers.toml").policies}


def test_rayleigh_fires_just_above_the_largest_eigenvalue_and_not_just_below() -> None:
    rayleigh = script("triggers").Rayleigh
    draws = np.random.default_rng(1)
    for dimension, before, since, lambda_ in ((1, 0, 1, 0.1), (3, 20, 4, 1.0), (12, 30, 10, 10.0)):
        old, new = (
            Statistics.zero(dimension).observe(
                (draws.normal(size=(rows, dimension)) / 10.0).clip(-0.25, 0.25).astype(np.float32), None
            )
            for rows in (before, since)
        )
        sigma = old.gram + lambda_ * np.eye(dimension)
        largest = np.linalg.eigvals(np.linalg.solve(sigma, sigma + new.gram)).real.max()
        now = Occasion(round=10, draw=0.9, arrivals=3, download=Ridge(old, lambda_), buffer=new)
        assert rayleigh(ratio=1 + (largest - 1) * (1 - 1e-6)).cause(now) is Cause.DETERMINANT
        assert rayleigh(ratio=1 + (largest - 1) * (1 + 1e-6)).cause(now) is None


def test_policies_with_rayleigh_run_by_the_reference() -> None:
    triggers = script("triggers")
    environment = Synthetic(users=6, clusters=2, dimension=6, items=20)
    for policy in (triggers.PAPER, triggers.POPULATION):
        with pytest.warns(UserWarning, match="does not support the trigger"):
            trace = simulate(environment, policy, rounds=300)
        assert trace.engine == "reference"
        assert trace.communications(Cause.DETERMINANT) > 0


def test_the_cost_of_an_upload_is_measured_with_each_policy() -> None:
    cost = script("grouping_cost")
    held = cost.make_uploads(Synthetic(users=6, clusters=2, dimension=5, seed=1), 5, 1)
    for name in cost.POLICY_NAMES:
        taken = cost.measure_uploads(cost.make_server(name, 30, True, held), held, 4)
        assert taken.size == 4
        assert (taken >= 0).all()


def test_a_short_day_of_load_passes() -> None:
    """A server with its default limits lives by the clock of the script, and takes every upload."""
    command = [sys.executable, str(FOLDER / "soak.py"), "--hours", "4", "--agents", "25"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[4].split()[:3] == ["4", "300", "95"]


def test_the_defaults_are_set_beside_what_was_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    defaults = script("defaults")
    world = defaults.Setting("lifted", 2, rounds=60, dimension=5, items=10, users=6)
    archive = defaults.Archive(tmp_path / "runs.jsonl")
    played = defaults.play(defaults.Run("population", 0.7, 4.0, world, 100), "")
    for run in defaults.list_tuning_runs([world], [4.0]):
        archive.outcomes[run] = played._replace(regret=1 + abs(run.beta - 0.2), clicks=50)
    totals = defaults.sum_tuning(archive)
    assert defaults.choose_constants(totals, "fedind", world) == (0.2, 4.0)
    rows = {world: defaults.list_report_runs(totals, world)}
    for name, runs in rows[world].items():
        archive.outcomes |= {run: played._replace(clicks=45 if name == "default" else 50) for run in runs}
    defaults.print_choice(totals, [world])
    defaults.print_report(rows, archive)
    assert (
        "| lifted, J 2, T 60, d 5, items 10, users 6 | 45 ± 0 | 50 ± 0 | 0.2 | 0.9000 ± 0.0000 |"
        in capsys.readouterr().out
    )


def test_a_filled_store_goes_through_all_that_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is sound: its log verifies, and a replay of it under another policy works."""
    size = script("store_size")
    templates, policy = size.make_templates(), POLICIES["population"]
    store, state = open_store(f"sqlite:///{tmp_path}/store.db"), size.make_state(policy, 150, templates)
    size.fill_rows(store, state, templates)
    with store.transaction():
        size.snapshots.save_snapshot(store, state)
    assert store.verify()[0] == 150
    assert len(replay_log(store, POLICIES["fedind"], size.DIMENSION).places) == 150
    monkeypatch.setattr(size, "BATCH", 2)
    size.measure(lambda: open_store(f"sqlite:///{tmp_path}/store.db"), policy, 150, templates)
    assert len(replay_log(store, policy, size.DIMENSION).places) == 151  # three joined, two were forgotten
    store.close()


def test_growth_is_written_between_the_marks_of_its_page_and_drawn(tmp_path: Path) -> None:
    growth = script("growth")
    found = {
        what: {name: {value: 2.0 * value / growth.BASE[what] for value in values} for name in growth.SYSTEMS}
        for what, values in growth.SWEEPS.items()
    }
    page = growth.PAGE.read_text("utf-8")
    written = growth.replace_section(page, growth.format_section(found, 1_000))
    assert written.startswith(page.partition(growth.BEGIN)[0])
    assert written.endswith(page.partition(growth.END)[2])
    assert "| users 2,560 | 128.0 (64.0) | 128.0 (64.0) |" in written
    assert growth.replace_section(written, "") == growth.replace_section(page, "")
    growth.draw(found, tmp_path / "growth.svg")
    assert "population" in (tmp_path / "growth.svg").read_text("utf-8")
    with pytest.raises(ValueError, match="must have the lines"):
        growth.replace_section("no marks", "")


def test_poisoning_agents_upload_before_honest_ones() -> None:
    poisoning = script("poisoning")
    world = Synthetic(users=3, clusters=1, dimension=4, items=12, seed=1)
    poisoning.PoisonedServer.poison = poisoning.build_poison(world, "inverted")
    poisoning.PoisonedServer.poisoning_agents = 2
    server = poisoning.PoisonedServer(policy=POLICIES["population"], agents=3, dimension=4)
    truth = Statistics(np.eye(4), np.zeros(4), 8, 0, 8)
    server.take(Upload(agent=0, sequence=1, cause=Cause.FORCED, statistics=truth))
    assert server.holdings.count.tolist() == [8, 0, 0, 50_000, 0]
    assert server.rounds == 8


@pytest.mark.parametrize("folder", ["benchmarks", "tools"])
def test_the_index_names_every_script(folder: str) -> None:
    index = (FOLDER.parent / folder / "README.md").read_text("utf-8")
    assert set(re.findall(r"`(\w+\.py)`", index)) == {path.name for path in (FOLDER.parent / folder).glob("*.py")}


def test_files_of_jester_are_read_with_their_gaps(tmp_path: Path) -> None:
    quality = script("peer_quality")
    (tmp_path / "jester-data-1.csv").write_text("2,-7.82,99,8.79\n1,99,99,-9.66\n")
    (tmp_path / "jester-data-2.csv").write_text("3,0.5,-1,2\n")
    found = quality.read_jester(tmp_path)
    assert found.users.tolist() == [0, 0, 1, 2, 2, 2]
    assert found.items.tolist() == [0, 2, 2, 0, 1, 2]
    assert found.values.tolist() == [-7.82, 8.79, -9.66, 0.5, -1.0, 2.0]
    with pytest.raises(ValueError, match=r"Jester5k\.rda .* jester-data-1"):
        quality.read_jester(tmp_path / "none")


def test_jester_is_compared_on_a_small_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quality, random = script("peer_quality"), np.random.default_rng(4)
    tastes, jokes = random.normal(size=(60, 25)), random.normal(size=(25, 100))
    table = np.clip(2.0 * tastes @ jokes / 5 + random.normal(size=(60, 100)), -10, 10)
    table[random.random(table.shape) < 0.3] = quality.UNRATED
    rows = [f"{int((row != quality.UNRATED).sum())},{','.join(f'{value:.2f}' for value in row)}" for row in table]
    (tmp_path / "jester-data-1.csv").write_text("\n".join(rows))
    quality.compare_ratings(quality.read_jester(tmp_path), rounds=100)
    printed = capsys.readouterr().out
    assert [line.split(" | ")[1] for line in printed.splitlines()[2:6]] == [
        "population", "fedind", "popularity", "known-clusters"]  # fmt: skip


def test_contestants_of_the_logged_comparison_learn_from_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    quality = script("peer_quality")
    environment = Ratings.from_matrix(generate_ratings(60, 80), users=6, clusters=2, dimension=4, items=10)
    monkeypatch.setattr(quality, "LOGGED_LISTS", 300)
    monkeypatch.setattr(quality, "NEW_LISTS", 20)
    lists = {
        label: quality.rank_offers(None, label, constants, environment)
        for label, constants in (("popularity of the log", {"prior": 4.0}), ("fedcascade fedind", {"beta": 0.0}))
    }
    assert all(len(set(row)) == quality.LIST_LENGTH for rows in lists.values() for row in rows)
    measured = {label: quality.measure_lists(environment, rows)[0] for label, rows in lists.items()}
    chance = quality.measure_lists(environment, [[0, 1, 2]] * 20)[0]
    assert measured["fedcascade fedind"] > chance


def test_validation_holds_out_new_and_known_users_as_the_test_set_of_mab2rec_does() -> None:
    quality = script("peer_quality")
    train = [(user, item, (user + item) % 2) for user in range(300) for item in range(8)]
    fitted, held = quality.split_validation(train, 1)
    assert sorted(fitted + held) == train
    users, others = {row[0] for row in held}, {row[0] for row in fitted}
    assert len(users - others) == pytest.approx(44, abs=2)
    assert 100 <= len(users) <= 110


def test_our_rankings_for_mab2rec_are_lists_of_its_items() -> None:
    quality, random = script("peer_quality"), np.random.default_rng(1)
    genres = {10 * item: random.integers(0, 2, 6).astype(float).tolist() for item in range(12)}
    train = [(user, item, int(random.random() < 0.3)) for user in range(20) for item in genres]
    for dimension in (0, 4):
        lists = quality.rank_ours("population", dimension, genres, train, [3, 99])
        assert [len(set(row)) for row in lists] == [quality.K] * 2
        assert {item for row in lists for item in row} <= set(genres)
