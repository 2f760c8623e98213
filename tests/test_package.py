"""The package imports fast, keeps its promises by name, and its core needs numpy and numba alone."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from statistics import median
from typing import Any

import pytest

import fedcascade
from fedcascade.checks import EXTRAS

BLOCKED = (
    *("rich", "cyclopts", "scipy", "networkx", "msgspec", "polars", "matplotlib", "pandas", "gymnasium"),
    *("litestar", "uvicorn", "httpx2", "nacl", "psycopg", "prometheus_client"),
)
BLOCK = f"""
import sys
import tomllib

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {BLOCKED!r}:
            raise ImportError(f"{{name}} is blocked")
        return None

sys.meta_path.insert(0, Blocker())
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, fedcascade; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    loaded = set(python(code).split())
    assert "fedcascade" in loaded
    assert loaded.isdisjoint({"numpy", "numba", "rich", "cyclopts", *BLOCKED})


@pytest.mark.parametrize("name", fedcascade.__all__)
def test_every_public_name_resolves(name: str) -> None:
    assert getattr(fedcascade, name) is not None
    assert name in dir(fedcascade)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = fedcascade.nothing_like_this


def test_star_import_gives_the_public_names() -> None:
    listed = python("from fedcascade import *; print(simulate.__name__, Synthetic.__name__, len(POLICIES) >= 6)")
    assert listed == "simulate Synthetic True"


def test_the_version_is_the_one_that_is_installed() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", fedcascade.__version__)
    assert metadata.version("fedcascade") == fedcascade.__version__


def test_the_blocker_blocks() -> None:
    code = BLOCK + "\ntry:\n    import rich\nexcept ImportError as error:\n    print(error)"
    assert python(code) == "rich is blocked"


def test_the_core_imports_and_runs_without_anything_but_numpy_and_numba() -> None:
    code = (
        BLOCK
        + """
import importlib, pkgutil
import fedcascade
from fedcascade.checks import EXTRAS

names = []
for room in ("numerics", "learning", "federation", "environments", "simulation"):
    package = importlib.import_module(f"fedcascade.{room}")
    for module in pkgutil.walk_packages(package.__path__, f"fedcascade.{room}."):
        importlib.import_module(module.name)
        names.append(module.name.removeprefix("fedcascade."))
world = fedcascade.Synthetic(users=4, clusters=2, dimension=4, items=6)
for name in fedcascade.POLICIES:
    fedcascade.simulate(world, fedcascade.get_policy(name), rounds=20)
print(*names)
"""
    )
    imported = python(code).split()
    for name in ("numerics.jit", "learning.ridge", "federation.grouping.graph.complete", "environments.synthetic"):
        assert name in imported
    assert {"simulation.reference", "simulation.exact.engine"} <= set(imported)


def test_help_does_not_import_the_engine() -> None:
    code = (
        "import sys\nfrom fedcascade.cli import main\nmain(['--help'])\n"
        "print(sorted({'numpy', 'numba'} & set(sys.modules)))"
    )
    assert python(code).splitlines()[-1] == "[]"


def measure_processor_seconds(*arguments: str) -> float:
    """Of a process, not counting the time in which others had the processor."""
    resource: Any = pytest.importorskip("resource", reason="this system does not count a process's time in this way")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, timeout=60, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return float(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


@pytest.mark.parametrize(
    ("arguments", "limit"), [(("-c", "import fedcascade"), 4), (("-m", "fedcascade", "--help"), 30)]
)
def test_starting_takes_little_more_than_the_interpreter_itself(arguments: tuple[str, ...], limit: float) -> None:
    """In turns, so that a machine that slows down does so for both; 2 and 14 times when this was written."""
    pairs = [(measure_processor_seconds("-c", "pass"), measure_processor_seconds(*arguments)) for _ in range(7)]
    bare, started = (median(column) for column in zip(*pairs, strict=True))
    assert started < limit * bare


def test_importing_the_package_imports_few_modules() -> None:
    count = "import sys; before = set(sys.modules); import fedcascade; print(len(set(sys.modules) - before))"
    assert int(python(count)) < 60


@pytest.mark.parametrize(
    ("extra", "statement"),
    [
        ("agent", "from fedcascade import connect"),
        ("agent", "from fedcascade import AgentPool"),
        ("server", "import fedcascade.service.server.serve"),
        ("logs", "from fedcascade import Ranker"),
        ("logs", "import fedcascade.data.readers"),
        ("logs", "import fedcascade.evaluation.evaluate"),
        ("experiments", "import fedcascade.experiments.runner"),
        ("gymnasium", "import fedcascade.gym"),
    ],
)
def test_what_needs_an_extra_names_it_in_one_line(extra: str, statement: str) -> None:
    module = EXTRAS[extra][-1]
    block = f"import sys\nsys.modules[{module!r}] = None\n"
    code = f"{block}try:\n    {statement}\nexcept ImportError as error:\n    print(error)"
    assert python(code).endswith(f" needs {module}: pip install 'fedcascade[{extra}]'")


def test_an_agent_and_what_it_saves_need_no_library_of_other_extras() -> None:
    others = {module for modules in EXTRAS.values() for module in modules} - set(EXTRAS["agent"])
    code = (
        f"import sys\nsys.modules |= dict.fromkeys({sorted(others)!r})\n"
        "from fedcascade import AgentPool, connect, connect_async, load_agent, save_agent\nprint(connect.__name__)"
    )
    assert python(code) == "connect"


def test_every_extra_that_brings_modules_is_declared() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["optional-dependencies"]) - {"all", "bench", "dev"} == set(EXTRAS)
