"""The chart, alert rules and systemd unit: rendered by helm if there is one, and held to what a server has."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedcascade.service.server.settings import Limits, ServerOptions, UploadBounds

from .helpers import ServerProcess, serve_in_process

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm"
TOOLS = ROOT / ".cache" / "deploy" / "bin"  # of ``make chart``
ALL = ("--set", "serviceMonitor.enabled=true,alerts.enabled=true,tlsSecret=certificate", "--set-string")


def find_tool(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path=str(TOOLS))
    if found is None:
        pytest.skip(f"{name} is not installed: 'make chart' installs it")
    return found


def render(*options: str) -> dict[str, Any]:
    """Render the chart; return its documents by kind."""
    command = [find_tool("helm"), "template", "shop", str(CHART), *options]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    documents = [document for document in yaml.safe_load_all(text) if document]
    return {document["kind"]: document for document in documents}


def test_helm_finds_nothing_wrong() -> None:
    done = subprocess.run([find_tool("helm"), "lint", "--strict", str(CHART)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_manifests_hold_the_schemas_of_kubernetes(tmp_path: Path) -> None:
    validate = find_tool("kubernetes-validate")
    documents = render(*ALL, "env.FEDCASCADE_RETAIN=30")
    known = [kind for kind in documents if kind not in ("ServiceMonitor", "PrometheusRule")]  # of an operator
    file = tmp_path / "manifests.yaml"
    file.write_text(yaml.safe_dump_all([documents[kind] for kind in known]), encoding="utf-8")
    done = subprocess.run([validate, "-k", "1.29", "--strict", str(file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == len(known) == 5


def test_a_pod_has_probes_secrets_and_settings_that_a_server_reads() -> None:
    documents = render(*ALL, "env.FEDCASCADE_RETAIN=30")
    [container] = documents["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTPS"}
    settings = {entry["name"] for entry in container["env"]}
    declared = {name for kind in (ServerOptions, Limits, UploadBounds) for name in kind.__dataclass_fields__}
    known = {f"FEDCASCADE_{name.upper()}" for name in (*declared, "policy", "log_format")}
    assert settings <= known
    [store] = [entry for entry in container["env"] if entry["name"] == "FEDCASCADE_STORE"]
    assert store["valueFrom"]["secretKeyRef"]["name"] == "fedcascade", "no password is in a manifest"
    assert documents["PodDisruptionBudget"]["spec"]["minAvailable"] == 1
    assert documents["NetworkPolicy"]["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert documents["PrometheusRule"]["spec"] == yaml.safe_load((CHART / "alerts.yaml").read_text(encoding="utf-8"))


def test_the_pod_of_helm_test_passes_at_a_server_and_fails_without_one(tmp_path: Path) -> None:
    """The program in the manifest runs here, with the address of a real server in place of the service's."""
    text = (CHART / "templates" / "tests" / "ready.yaml").read_text(encoding="utf-8")
    assert "helm.sh/hook: test" in text
    program = textwrap.dedent(text.partition("        - |\n")[2])
    server = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        server.connect().transport.close()
        program, found = re.subn(r'^base = ".*"$', f'base = "{server.url}"', program, flags=re.MULTILINE)
        assert found == 1
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "/healthz 200\n/readyz 200\n/v1/terms 200\n"), done.stderr
    finally:
        server.stop()
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode != 0


@pytest.mark.parametrize(
    "values", ["replicas=0", "existingSecret=", "dimensions=20", "env.RETAIN=30", "service.port=0"]
)
def test_values_that_make_no_sense_are_refused(values: str) -> None:
    command = [find_tool("helm"), "template", "shop", str(CHART), "--set", values]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "values don't meet the specifications of the schema" in done.stderr


def test_alerts_and_pictures_name_metrics_that_a_server_has(tmp_path: Path) -> None:
    with serve_in_process(tmp_path / "store.db") as running:
        running.operator.count_arms([])
        text = running.transport.send("GET", "/metrics", b"", {}).text
    known = set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    histogram = {f"{name}_{suffix}" for name in known for suffix in ("bucket", "count", "sum")}
    rules = yaml.safe_load((CHART / "alerts.yaml").read_text(encoding="utf-8"))
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    expressions += re.findall(r'"expr": "(.*)"', (DEPLOY / "grafana-dashboard.json").read_text(encoding="utf-8"))
    used = {name for expression in expressions for name in re.findall(r"fedcascade_\w+", expression)}
    assert used <= known | histogram
    assert len(used) > 8
    template = (CHART / "templates" / "alerts.yaml").read_text(encoding="utf-8")
    assert [name for name in re.findall(r'Files.Get "(.*?)"', template) if (CHART / name).is_file()] == ["alerts.yaml"]
    counters = set(re.findall(r"^# TYPE (\w+) counter", text, re.MULTILINE))
    assert {"fedcascade_joined_total", "fedcascade_left_total", "fedcascade_resets_total"} <= counters


def test_the_unit_starts_a_server_and_reloads_it() -> None:
    unit = (DEPLOY / "fedcascade.service").read_text(encoding="utf-8")
    assert re.search(r"^ExecStart=.*/fedcascade serve$", unit, re.MULTILINE)
    assert re.search(r"^ExecReload=/bin/kill -HUP", unit, re.MULTILINE)
    verify = shutil.which("systemd-analyze")
    if verify is not None:
        done = subprocess.run(
            [verify, "verify", "--man=no", str(DEPLOY / "fedcascade.service")], capture_output=True, text=True
        )
        faults = [
            line for line in done.stderr.splitlines() if "fedcascade.service" in line and "not executable" not in line
        ]
        assert faults == []
