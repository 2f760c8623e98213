"""Memory stays flat however many rounds are played, and compiled code is found again on disk.

Runs are processes of their own: ``benchmarks/engines.py --grow`` prints the peak in MB last.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.simulation.exact import engine
from fedcascade.simulation.exact.driver import make_packed_states
from fedcascade.simulation.scenario import Scenario

BENCH = Path(__file__).parents[2] / "benchmarks" / "engines.py"
FIRST_CALL = """
from fedcascade import POLICIES, Synthetic, simulate
from fedcascade.simulation.exact import kernels

simulate(Synthetic(users=4, clusters=2, dimension=4, items=8), POLICIES["fedc3ucb-h"], rounds=50)
print(sum(kernels.advance_agents.stats.cache_hits.values()), sum(kernels.advance_agents.stats.cache_misses.values()))
"""


def measure_peak(system: str, *, rounds: int, users: int, items: int, dimension: int, minutes: int = 2) -> float:
    sizes = map(str, (rounds, users, items, dimension))
    process = subprocess.run(
        [sys.executable, str(BENCH), "--grow", system, *sizes],
        capture_output=True,
        text=True,
        timeout=60 * minutes,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return float(process.stdout.split()[-1])


def test_eight_times_the_rounds_take_no_more_memory() -> None:
    short, long = (
        measure_peak("fedc3ucb-h", rounds=rounds, users=12, items=16, dimension=12) for rounds in (50_000, 400_000)
    )
    assert long - short < 5.0, f"{short:.0f} MB after 50,000 rounds, {long:.0f} MB after 400,000"


@pytest.mark.long
def test_ten_million_rounds_stay_below_500_mb() -> None:
    assert measure_peak("fedc3ucb-h", rounds=10_000_000, users=40, items=200, dimension=20, minutes=30) < 500.0


@pytest.mark.long
def test_four_thousand_users_stay_below_2_gb() -> None:
    assert measure_peak("fedc3ucb-h", rounds=200_000, users=4_000, items=200, dimension=20, minutes=10) < 2_000.0


def test_an_agent_takes_less_than_four_kilobytes() -> None:
    assert sum(array.nbytes for array in make_packed_states(100, 20)) < 4_000 * 100


@pytest.mark.long
@pytest.mark.parametrize(("system", "kilobytes"), [("fedind", 4.5), ("fedlinucb", 8.5)])
def test_many_users_take_a_few_kilobytes_each(system: str, kilobytes: float) -> None:
    few, many = (
        measure_peak(system, rounds=3 * users, users=users, items=20, dimension=20, minutes=20)
        for users in (1_000, 200_000)
    )
    assert (many - few) * 2**20 / 199_000 < 1_000 * kilobytes


def test_windows_that_grow_with_the_users_change_nothing() -> None:
    world = Synthetic(users=700, clusters=3, dimension=4, items=6)
    scenario = Scenario(world, POLICIES["fedlinucb"].with_constants(alpha_c=0.3), rounds=14_000)
    short, grown = (engine.simulate(scenario, threads=2, window=window) for window in (256, None))
    assert short == grown
    assert len(short.ledger) > 700


def test_a_second_process_loads_compiled_code_from_disk() -> None:
    simulate(Synthetic(users=4, clusters=2, dimension=4, items=8), POLICIES["fedc3ucb-h"], rounds=50)
    process = subprocess.run(
        [sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, timeout=120, check=False, env=os.environ
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["1", "0"], "cache hits and misses of the engine's main loop"


def test_compilation_does_not_count_as_rounds() -> None:
    """Progress begins with 0, when everything is compiled, and only then does the clock start."""
    seen: list[int] = []
    trace = simulate(
        Synthetic(users=4, clusters=2, dimension=4, items=8), POLICIES["fedind"], rounds=300, progress=seen.append
    )
    assert seen[0] == 0
    assert seen[-1] == 300
    assert trace.seconds < 5.0
