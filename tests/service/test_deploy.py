"""The compose files and the image are sound, and what they name exists; no Docker engine is needed to see that."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(DEPLOY.glob("compose*.yaml"))


def loaded(path: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_compose_file_names_only_what_exists(path: Path) -> None:
    document = loaded(path)
    services, volumes = document["services"], document["volumes"]
    assert set(document) <= {"services", "volumes"}
    for service in services.values():
        assert ("image" in service) != ("build" in service)
        assert {mount.split(":")[0] for mount in service.get("volumes", [])} <= set(volumes)
        assert set(service.get("depends_on", {})) <= set(services)
        if "build" in service:
            assert (path.parent / service["build"]["context"] / service["build"]["dockerfile"]).is_file()


def test_there_are_files_for_both_stores_and_for_a_standby() -> None:
    assert [path.name for path in FILES] == ["compose.ha.yaml", "compose.sqlite.yaml", "compose.yaml"]


def test_the_servers_of_a_pair_know_both_databases_and_each_database_its_own_name() -> None:
    services = loaded(DEPLOY / "compose.ha.yaml")["services"]
    databases = sorted(name for name in services if name.startswith("database"))
    for name in ("server", "server-two"):
        [store] = [option for option in services[name]["command"] if option.startswith("--store=")]
        assert store.partition("@")[2] == f"{','.join(databases)}/fedcascade"
    for name in databases:
        environment = services[name]["environment"]
        assert environment["PATRONI_NAME"] == name
        assert environment["PATRONI_POSTGRESQL_CONNECT_ADDRESS"] == f"{name}:5432"
        assert environment["PATRONI_ETCD3_HOSTS"].count("etcd") == 3
    members = [name for name in services if name.startswith("etcd")]
    assert all(services[name]["environment"]["ETCD_NAME"] == name for name in members)
    places = [mount for service in services.values() for mount in service["volumes"]]
    assert len(places) == len(set(places)), "no two containers share a disk"


def test_patroni_never_lets_a_commit_count_without_the_standby() -> None:
    settings = yaml.safe_load((DEPLOY / "patroni.yaml").read_text(encoding="utf-8"))["bootstrap"]["dcs"]
    assert settings["synchronous_mode"]
    assert settings["synchronous_mode_strict"]
    assert settings["loop_wait"] + 2 * settings["retry_timeout"] <= settings["ttl"]
    assert settings["postgresql"]["parameters"]["synchronous_commit"] == "on"


def instructions(keyword: str) -> list[str]:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    return [line.removeprefix(f"{keyword} ") for line in text.splitlines() if line.startswith(f"{keyword} ")]


def locked() -> dict[str, str]:
    """What the image's lock file pins: the text of each entry by the name of its package."""
    text = (ROOT / "locks/server.txt").read_text(encoding="utf-8")
    return {entry.partition("==")[0]: entry for entry in re.split(r"\n(?=\w)", text) if "==" in entry}


def required(extra: str) -> set[str]:
    """The packages that an extra asks for, with those of the extras that it names and those of the package itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting, names = [*project["dependencies"], *project["optional-dependencies"][extra]], set()
    while waiting:
        requirement = waiting.pop()
        if own := re.match(r"fedcascade\[([\w,]+)\]", requirement):
            for name in own[1].split(","):
                waiting += project["optional-dependencies"][name]
        else:
            names.add(re.split(r"[\[<>=;~! ]", requirement)[0].lower())
    return names


def test_the_image_copies_what_exists() -> None:
    sources = [source for line in instructions("COPY") for source in line.split()[:-1]]
    assert "locks/server.txt" in sources
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_images_are_built_for_amd64_and_arm64_and_the_lock_has_wheels_of_both() -> None:
    """A package with compiled code has a wheel, so a hash, for each kind of machine."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text(encoding="utf-8"))
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    [built] = [step["with"] for step in steps if "docker/build-push-action" in step.get("uses", "")]
    assert built["platforms"] == "linux/amd64,linux/arm64"
    assert any("docker/setup-qemu-action" in step.get("uses", "") for step in steps)
    assert built["file"] == "deploy/Dockerfile"
    assert not re.search(r"amd64|x86_64|--platform", (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8"))
    for name in ("numpy", "numba", "llvmlite", "uvloop", "httptools", "msgspec", "psycopg-binary"):
        assert locked()[name].count("--hash=sha256:") > 10, name


def test_the_image_installs_from_the_lock_alone() -> None:
    installs = [part for line in instructions("RUN") for part in line.split("&&") if "pip install" in part]
    assert len(installs) == 2
    assert all("--no-deps" in install for install in installs), "what the lock does not name is not installed"
    assert "--require-hashes --requirement locks/server.txt" in installs[0]
    assert "--no-build-isolation ." in installs[1], "the build takes its tools from the lock, too"


def test_the_images_lock_has_all_that_the_service_needs_with_hashes_and_no_addresses() -> None:
    entries = locked()
    assert required("postgres") | {"hatchling"} <= set(entries)
    assert all("--hash=sha256:" in entry for entry in entries.values())
    assert "://" not in "".join(entries.values())


def test_the_locks_agree_on_versions() -> None:
    everything = (ROOT / "locks/dev.txt").read_text(encoding="utf-8")
    versions = [re.match(r"[^ ]+==[^ ]+", entry) for entry in locked().values()]
    assert [version[0] for version in versions if version and f"{version[0]} " not in everything] == []
