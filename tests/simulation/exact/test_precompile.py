"""Compiling ahead compiles what runs use, and nothing else."""

import gc
import subprocess
import sys

import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.numerics.fragments import FragmentDispatcher
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.exact.precompile import list_steps

SYSTEMS = ("fedc3ucb-h", "fedind", "known-clusters", "fedlinucb", "c3-ucb", "population")


def count_compiled() -> dict[str, int]:
    """How many versions of each function Python has called, whether they were compiled or loaded from disk."""
    functions = [each for each in gc.get_objects() if type(each) is FragmentDispatcher]
    return {f"{each.py_func.__module__}.{each.py_func.__qualname__}": len(each.overloads) for each in functions}


@pytest.fixture(scope="module")
def compiled_ahead() -> None:
    for step in list_steps([POLICIES[name] for name in SYSTEMS]):
        step()


@pytest.mark.usefixtures("compiled_ahead")
def test_runs_find_everything_that_they_call_compiled() -> None:
    before = count_compiled()
    for name in SYSTEMS:
        simulate(Synthetic(users=4, clusters=2, dimension=5, items=10), POLICIES[name], rounds=50)
    assert count_compiled() == before


def test_loops_over_rounds_are_compiled_once_for_agents_with_and_without_trust() -> None:
    """One more signature would have been compiled in vain; other tests here compile other environments."""
    program = f"""
from fedcascade.federation.policies import POLICIES
from fedcascade.simulation.exact import kernels, sequential_kernels
from fedcascade.simulation.exact.precompile import list_steps
for step in list_steps([POLICIES[name] for name in {SYSTEMS}]):
    step()
print(len(kernels.advance_agents.signatures), len(sequential_kernels.advance_by_time.signatures))
"""
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["2", "1"]


def test_what_only_compiled_code_calls_is_never_compiled_by_itself() -> None:
    """Else numba would optimise and wrap it twice: for itself, and in each of its callers."""
    simulate(Synthetic(users=4, clusters=2, dimension=5, items=10), POLICIES["fedind"], rounds=50)
    compiled = count_compiled()
    assert compiled["fedcascade.simulation.exact.kernels.advance_agents"] >= 1
    inner = ("kernels.play_round", "ranking.select_list", "screening.screen_items", "kernels.show_list")
    assert [compiled[f"fedcascade.simulation.exact.{name}"] for name in inner] == [0, 0, 0, 0]
