"""Compiling ahead compiles what runs use, and nothing else."""

import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.exact import kernels
from fedcascade.simulation.exact.precompile import STAGES


@pytest.mark.parametrize("name", ["play_round", "prepare_decision", "find_trigger", "advance_agents", "sort_rounds"])
def test_runs_find_what_was_compiled_ahead(name: str) -> None:
    for stage in STAGES:
        for compile_step in stage:
            compile_step()
    for policy in ("fedc3ucb-h", "fedind"):
        simulate(Synthetic(users=4, clusters=2, dimension=5, items=10), POLICIES[policy], rounds=50)
    # A second signature would mean that one of the two was compiled in vain; other tests compile oracles with limits.
    plain = [signature for signature in getattr(kernels, name).signatures if "CompiledLimits" not in str(signature)]
    assert len(plain) == 1
