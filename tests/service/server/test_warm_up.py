"""A server is ready when its first exchange needs no compiler."""

import subprocess
import sys

import pytest

# In a process of its own: elsewhere, other tests may have compiled what a server forgot.
PROGRAM = """
import gc, sys, tempfile
from dataclasses import replace
from pathlib import Path
import numpy as np
from fedcascade.federation.policies import POLICIES
from fedcascade.federation.warm_start import precompile_agent
from fedcascade.federation.triggers import Always
from fedcascade.numerics.fragments import FragmentDispatcher
from fedcascade.service.agent.connection import connect
from tests.service.helpers import CuttableTransport, serve_in_process

def list_compiled():
    functions = [each for each in gc.get_objects() if type(each) is FragmentDispatcher]
    return {f"{each.py_func.__qualname__}{types}" for each in functions for types in each.overloads}

policy, random = POLICIES[sys.argv[1]], np.random.default_rng(0)
with tempfile.TemporaryDirectory() as folder, serve_in_process(Path(folder) / "store.db", policy=policy) as running:
    precompile_agent(policy, 3)
    before = list_compiled()
    for number, token in enumerate(running.operator.create_tokens(3)):
        with connect("", store=f"{folder}/{number}.db", token=token, min_observations=0,
                     policy=replace(policy, trigger=Always()), transport=CuttableTransport(running)) as agent:
            for _ in range(30):
                agent.feedback(agent.recommend(random.dirichlet(np.ones(3), 6), 2), 0)
            assert agent.flush(60.0)
    uploads = running.writer.state.position
    print(uploads > 5, sorted(list_compiled() - before))
"""


@pytest.mark.parametrize("policy", ["fedc3ucb-h", "population"])
def test_exchanges_compile_nothing_that_the_start_did_not(policy: str) -> None:
    """Before, the first upload compiled the check of its sum with what was held."""
    command = [sys.executable, "-c", PROGRAM, policy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "True []\n", done.stderr[-2000:]
