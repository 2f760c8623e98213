"""What is published: a wheel that holds the package and nothing else, and an archive that builds the same wheel."""

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import fedcascade

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def build(source: Path, kind: str, out: Path) -> Path:
    """Build with the backend that the lock file installs, as ``python -m build --no-isolation`` does."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", kind, "--directory", str(out)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    [made] = out.iterdir()
    return made


def read_wheel(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return read_wheel(build(ROOT, "wheel", tmp_path_factory.mktemp("wheel")))


def list_sources() -> set[str]:
    """Every file under src, those behind the link to the agent in JavaScript included."""
    package = ROOT / "src" / "fedcascade"
    agent = {f"fedcascade/service/agent/assets/{path.name}" for path in (ROOT / "packages/agent/src").glob("*.js")}
    return agent | {
        f"fedcascade/{path.relative_to(package).as_posix()}"
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_the_wheel_holds_all_of_the_package_and_nothing_else(wheel: dict[str, bytes]) -> None:
    held = {name for name in wheel if ".dist-info/" not in name}
    assert held == list_sources()
    assert "fedcascade/py.typed" in held
    assert "fedcascade/service/agent/assets/index.js" in held, "servers offer it to browsers"
    assert "fedcascade/experiments/plans/figure-1a.toml" in held


def test_the_wheel_says_what_it_is(wheel: dict[str, bytes]) -> None:
    info = f"fedcascade-{fedcascade.__version__}.dist-info"
    assert b"fedcascade = fedcascade.cli:main" in wheel[f"{info}/entry_points.txt"]
    assert f"{info}/licenses/LICENSE" in wheel
    described = wheel[f"{info}/METADATA"].decode()
    assert f"Version: {fedcascade.__version__}\n" in described
    assert "License-Expression: MIT\n" in described
    assert "Project-URL: Documentation" in described


def test_the_source_archive_builds_the_same_wheel(tmp_path: Path, wheel: dict[str, bytes]) -> None:
    archive = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path / "unpacked", filter="data")
    [unpacked] = (tmp_path / "unpacked").iterdir()
    names = {path.name for path in unpacked.iterdir()}
    assert {"README.md", "LICENSE", "CHANGELOG.md", "pyproject.toml", "src", "tests", "docs"} <= names
    again = read_wheel(build(unpacked, "wheel", tmp_path / "again"))
    assert again == wheel
    shutil.rmtree(tmp_path)


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    [latest, *_] = re.findall(r"^## \[(\d[^]]*)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    agent = re.search(r'"version": "(.*?)"', (ROOT / "packages/agent/package.json").read_text("utf-8"))
    assert agent is not None
    assert {PROJECT["version"], citation["version"], latest, agent[1]} == {fedcascade.__version__}


def test_every_extra_is_described_with_its_weight() -> None:
    page = (ROOT / "docs" / "how-to-install.md").read_text("utf-8")
    assert set(re.findall(r"^\| `\[(\w+)\]` \|.*\d+ MB", page, re.MULTILINE)) == set(PROJECT["optional-dependencies"])


def test_the_citation_names_the_software_and_the_paper() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["type"] == "software"
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == PROJECT["urls"]["Repository"]
    [paper] = citation["references"]
    assert paper["title"] in " ".join((ROOT / "docs" / "README.md").read_text("utf-8").split())
    assert len(paper["authors"]) == 7


def test_the_changelog_keeps_its_form() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    releases = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert re.fullmatch(r"\[\d+\.\d+\.\d+\](?: - \d{4}-\d\d-\d\d)?", releases[1])  # the next one has no date yet
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", each) for each in releases[2:])
    kinds = set(re.findall(r"^### (.*)$", text, re.MULTILINE))
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    for release in releases:
        name = release.partition("]")[0].removeprefix("[")
        assert re.search(rf"^\[{re.escape(name)}\]: {re.escape(PROJECT['urls']['Repository'])}/", text, re.MULTILINE)
