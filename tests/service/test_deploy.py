"""The compose files are well-formed, and what they start exists; no Docker engine is needed to see that."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from fedcascade.cli.commands import app

DEPLOY = Path(__file__).parents[2] / "deploy"
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


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_command_of_the_server_is_one_that_the_command_line_understands(path: Path) -> None:
    command = loaded(path)["services"]["server"]["command"]
    called, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
    assert called.__name__ == "serve"
    assert bound.arguments["host"] == "0.0.0.0"


def test_there_are_files_for_both_stores() -> None:
    assert [path.name for path in FILES] == ["compose.sqlite.yaml", "compose.yaml"]
