"""The commands of the service, against a real server process."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

from fedcascade.cli import main
from fedcascade.cli.commands import app
from fedcascade.cli.constants import ConstantOptions
from fedcascade.data.logs import read_log
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.saved import WarmState, save_warm
from fedcascade.service.agent.client import OperatorClient, fetch_terms
from fedcascade.service.agent.connection import connect
from fedcascade.service.protocol.errors import Refused
from fedcascade.service.server.tenure import TERMS
from fedcascade.service.store.open import open_store
from fedcascade.simulation.engines import simulate

from ..service.helpers import TOKEN, ServerProcess, build_unit_upload, serve_in_process
from ..service.server.test_warming import POLICY, make_sums
from ..service.test_deploy import FILES, loaded

CONSTANTS = {f"--{field.name.rstrip('_').replace('_', '-')}" for field in fields(ConstantOptions)}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    server = ServerProcess(tmp_path_factory.mktemp("cli"), "sqlite:///store.db", dimension=5).start()
    server.connect().transport.close()
    yield server
    server.stop()


def told(process: ServerProcess) -> list[str]:
    return ["--url", process.url, "--operator-token", str(process.folder / "operator.token")]


def test_enroll_revoke_and_forget(process: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["enroll", *told(process), "--count", "2"])
    first, second = capsys.readouterr().out.split()
    agents = [
        connect(process.url, store=str(tmp_path / f"{n}.db"), token=token) for n, token in enumerate((first, second))
    ]
    main(["revoke", str(agents[0].id), *told(process)])
    main(["forget", str(agents[1].id), *told(process)])
    for agent in agents:
        agent.close()
    said = capsys.readouterr().err
    assert f"agent {agents[0].id} is revoked" in said
    assert f"agent {agents[1].id} is forgotten" in said
    with pytest.raises(SystemExit) as ended:
        main(["forget", "4711", *told(process)])
    assert ended.value.code == 2
    assert "there is no agent 4711" in capsys.readouterr().err


def test_a_swarm_in_lockstep_prints_what_run_prints(process: ServerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    main(["swarm", *told(process), "--users", "4", "--rounds", "300", "--clusters", "2", "--items", "12",
          "--lockstep", "--among-agents", "--json"])  # fmt: skip
    swarm = json.loads(capsys.readouterr().out)
    world = Synthetic(users=4, clusters=2, dimension=5, items=12)
    trace = simulate(world, POLICIES["fedc3ucb-h"], rounds=300, engine="reference")
    assert (swarm["engine"], swarm["regret"], swarm["reward"]) == ("swarm", trace.regret, trace.reward)
    assert swarm["communications"]["total"] == trace.communications() > 0


def test_a_swarm_that_explores_leaves_a_log_with_propensities(
    process: ServerProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log.csv"
    main(["swarm", *told(process), "--users", "3", "--rounds", "60", "--clusters", "2", "--items", "8", "--lockstep",
          "--oracle", "epsilon", "--list-length", "2", "--log", str(path), "--among-agents", "--json"])  # fmt: skip
    reward = json.loads(capsys.readouterr().out)["reward"]
    log = read_log(path).read()
    assert (len(log), int(log.clicks.any(axis=1).sum())) == (60, reward)
    assert log.propensities is not None
    assert (log.propensities < 1.0).all()
    with pytest.raises(SystemExit):
        main(["swarm", *told(process), "--clusters", "2", "--among-agents", "--log", str(tmp_path / "log.xlsx")])
    assert "must end in one of .parquet, .csv, .jsonl" in capsys.readouterr().err


def test_a_server_guards_its_answers_unless_it_is_told_otherwise(process: ServerProcess, tmp_path: Path) -> None:
    guarded = ServerProcess(tmp_path, "sqlite:///store.db", "--set", "max_weight=3", published=False).start()
    transports = [server.connect().transport for server in (guarded, process)]
    try:
        constants = [fetch_terms(transport).constants for transport in transports]
    finally:
        for transport in transports:
            transport.close()
        guarded.stop()
    names = ("min_others", "max_weight", "bridge_share")
    assert [constants[0][name] for name in names] == [2, 3.0, 0.5]
    assert not {*names} & constants[1].keys()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["serve", "--policy", "known-clusters"], "needs the true clusters"),
        (["serve", "--lambda", "0.0001"], "lambda must be at least 0.0002"),
        (["serve", "--policy", "async-linucb"], "a server cannot call agents"),
        (["serve", "--policy", "dislinucb"], "a server cannot call agents"),
        (["serve", "--policy", "fedind"], "never exchanges"),
        (["serve", "--policy", "fedc3ucb"], "did you mean 'fedc3ucb-h'"),
        (["serve", "--store", "nonsense"], "a store must be"),
        (["serve", "--tls-cert", "chain.pem"], "both a certificate and a key"),
        (["serve", "--dimension", "0"], "dimension must be"),
        (["enroll", "--operator-token", "missing.token"], "cannot read the operator's token"),
        (["enroll", "--url", "ftp://x"], "a server's address looks like"),
        (["enroll", "--url", "http://127.0.0.1:1"], "cannot reach the server"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if arguments[0] == "enroll" and "--operator-token" not in arguments:
        (tmp_path / "operator.token").write_text("x" * 43, encoding="utf-8")
    if arguments[0] == "serve":
        arguments = [*arguments, "--port", "0"]
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_store_of_another_dimension_is_refused(process: ServerProcess) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fedcascade",
            "serve",
            "--store",
            "sqlite:///store.db",
            "--dimension",
            "6",
            "--port",
            "0",
        ],
        cwd=process.folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "uploads of dimension 5" in done.stderr


def test_tls(tmp_path: Path) -> None:
    """A server with a certificate of its own speaks https, and a client that knows the certificate trusts it."""
    import ssl

    from fedcascade.service.agent.transport import HttpTransport

    make_certificate(tmp_path)
    server = ServerProcess(tmp_path, "sqlite:///store.db", "--tls-cert", "cert.pem", "--tls-key", "key.pem").start()
    try:
        url = f"https://127.0.0.1:{server.port}"
        trusting = HttpTransport(url, verify=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        assert trusting.send("GET", "/healthz", b"", {}).status_code == 200
        trusting.close()
        careful = HttpTransport(url)
        with pytest.raises(ConnectionError, match="certificate"):
            careful.send("GET", "/healthz", b"", {})
        careful.close()
        assert server.process is not None
        make_certificate(tmp_path)
        (tmp_path / "operator.token").write_text("a token of another operator", encoding="ascii")
        server.process.send_signal(signal.SIGHUP)
        wait_for_certificate(url, tmp_path / "cert.pem")
        renewed = HttpTransport(url, verify=ssl.create_default_context(cafile=str(tmp_path / "cert.pem")))
        OperatorClient(renewed, "a token of another operator").fetch_overview()
        (tmp_path / "cert.pem").write_text("no certificate", encoding="ascii")
        server.process.send_signal(signal.SIGHUP)
        assert server.process.stderr is not None
        assert any("nothing is changed" in line for line in server.process.stderr)
        renewed.close()
    finally:
        server.stop()


def make_certificate(folder: Path) -> None:
    """Make a certificate of this machine, and its key."""
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
         "-days", "2", "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, capture_output=True, check=False,
    )  # fmt: skip
    if made.returncode:
        pytest.skip("openssl is not installed")


def wait_for_certificate(url: str, certificate: Path, seconds: float = 20.0) -> None:
    """Wait until a server shows a certificate."""
    import ssl

    expected = ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii"))
    end, port = time.monotonic() + seconds, int(url.rpartition(":")[2])
    while ssl.PEM_cert_to_DER_cert(ssl.get_server_certificate(("127.0.0.1", port))) != expected:
        assert time.monotonic() < end, "the server shows the old certificate"
        time.sleep(0.02)


def test_no_answer_of_a_server_may_be_taken_for_another_type(tmp_path: Path) -> None:
    """Those of the application, of the fast path of exchanges and of the parser."""
    server = ServerProcess(tmp_path, "sqlite:///store.db").start()
    running = server.connect()
    answered = ("/v1/terms", "/metrics", "/", "/live/assets/main.js", "/agent/index.js", "/live/session", "/schema")
    asked = {("GET", path): 200 for path in answered}
    asked |= {("GET", "/v1/overview"): 401, ("GET", "/nothing"): 404, ("POST", "/v1/exchanges"): 401}
    asked[("GET", "/" + 20_000 * "a")] = 431
    for (method, path), status in asked.items():
        reply = running.transport.send(method, path, b"x" if method == "POST" else b"", {})
        assert reply.status_code == status, path
        assert reply.headers.get_list("x-content-type-options") == ["nosniff"], path
    running.transport.close()
    server.stop()


def test_a_server_answers_head_and_says_when_it_has_stopped(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "sqlite:///store.db").start()
    running = server.connect()
    for path in ("/healthz", "/readyz"):
        reply = running.transport.send("HEAD", path, b"", {})
        assert (reply.status_code, reply.content) == (200, b"")
    running.transport.close()
    process = server.process
    assert process is not None
    assert process.stderr is not None
    process.send_signal(signal.SIGTERM)
    assert "fedcascade: stopped; the log ends at position 0" in process.stderr.read()
    server.stop()


def test_every_option_of_a_server_has_a_variable() -> None:
    command = app["serve"]
    arguments = [each for each in command.assemble_argument_collection() if each.parameter.show is not False]
    names = {name for each in arguments for name in each.names if name.startswith("--")}
    variables = {variable for each in arguments for variable in (each.parameter.env_var or ())}
    own = {name for name in names if not name.startswith(("--help", "--version"))}
    missing = {name for name in own if "FEDCASCADE_" + name[2:].upper().replace("-", "_") not in variables}
    assert missing == {name for name in missing if name in CONSTANTS}, "constants are set by FEDCASCADE_SET"
    assert "FEDCASCADE_SET" in variables
    assert len(variables) > 25


def test_a_swarm_keeps_away_from_a_server_with_agents(
    process: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["enroll", *told(process)])
    token = capsys.readouterr().out.strip()
    connect(process.url, store=":memory:", token=token).close()
    with pytest.raises(SystemExit) as ended:
        main(["swarm", *told(process), "--users", "2", "--rounds", "10"])
    assert ended.value.code == 2
    assert "agents already: simulated users would spoil what they learn" in capsys.readouterr().err


def test_agents_are_listed_in_80_columns_page_by_page(
    process: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running = process.connect()
    silent, spoken, revoked = (running.enrol() for _ in range(3))
    for agent in (spoken, revoked):
        agent.exchange(build_unit_upload(1, 0, 5))
    running.operator.revoke(revoked.agent)
    running.transport.close()
    main(["agents", *told(process), "--json", "--limit", "1000"])
    rows = {row["agent"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert [rows[agent.agent]["state"] for agent in (silent, spoken, revoked)] == ["idle", "active", "revoked"]
    assert (rows[silent.agent]["cluster"], rows[silent.agent]["last"], rows[spoken.agent]["rounds"]) == (None, None, 1)
    assert list(rows) == sorted(rows)
    found = {"revoked": [agent for agent, row in rows.items() if row["revoked"]]}
    found["idle"] = [agent for agent, row in rows.items() if row["last"] is None]
    found["active"] = [agent for agent, row in rows.items() if row["last"] is not None]
    for state, expected in found.items():
        main(["agents", *told(process), "--json", "--state", state, "--limit", "1000"])
        listed = [json.loads(line)["agent"] for line in capsys.readouterr().out.splitlines()]
        assert listed == expected
    monkeypatch.setenv("COLUMNS", "80")
    main(["agents", *told(process), "--limit", "2"])
    table = capsys.readouterr().out
    assert f"{len(rows)} enrolled: " in table
    first_two = sorted(rows)[:2]
    assert all(str(agent) in table for agent in first_two)
    assert table.splitlines()[-1].endswith(f"--limit 2 --after {first_two[-1]}")
    assert max(len(line) for line in table.splitlines()) <= 80
    main(["agents", *told(process), "--limit", "1", "--after", str(first_two[0])])
    assert str(first_two[1]) in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["agents", *told(process), "--limit", "0"])


def test_the_operators_token_is_replaced_while_the_server_runs(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path, "sqlite:///store.db").start()
    path = tmp_path / "operator.token"
    running = server.connect()
    try:
        main(["rotate-token", "--url", server.url, "--operator-token", str(path)])
        token = path.read_text(encoding="ascii").strip()
        assert token != TOKEN
        assert (path.stat().st_mode & 0o777, list(tmp_path.glob("*.new"))) == (0o600, [])
        with pytest.raises(Refused, match="this needs the operator's token"):
            running.operator.fetch_overview()
        OperatorClient(running.transport, token).fetch_overview()
        (tmp_path / "operator.token.new").write_text(token, encoding="ascii")  # as if the last step had been cut off
        path.write_text(TOKEN, encoding="ascii")
        main(["rotate-token", "--url", server.url, "--operator-token", str(path)])
        assert path.read_text(encoding="ascii").strip() == token
    finally:
        running.transport.close()
        server.stop()
    path.write_text(TOKEN, encoding="ascii")
    path.chmod(0o600)
    command = [*server.command(), "--beta", "1.5", "--take-over"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "this operator's token was replaced before" in refused.stderr
    with closing(open_store(f"sqlite:///{tmp_path}/store.db")) as store:
        terms = json.loads(store.get_setting(TERMS) or "")
    assert terms["constants"]["beta"] == "10.5"  # a server that does not start takes nothing over


def test_live_leaves_nothing_behind_when_it_is_told_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedcascade", "live", "--no-browser", "--port", "0", "--rounds", "100000"]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        assert any("dashboard: " in line for line in process.stderr)
        assert list(tmp_path.glob("fedcascade-live-*"))
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(tmp_path.glob("fedcascade-live-*"))


@pytest.mark.parametrize("command", ["live", "swarm"])
def test_options_of_live_and_swarm_have_variables_of_their_own(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    variable = f"FEDCASCADE_{command.upper()}_ROUNDS"
    monkeypatch.setenv(variable, "0")
    with pytest.raises(SystemExit):
        main([command])
    words = "rounds must be a whole number >= 1, got 0"
    assert capsys.readouterr().err == f"fedcascade: Invalid value for {variable}: {words}\n"


def test_settings_of_a_server_come_from_flags_or_else_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FEDCASCADE_PORT", "70000")
    monkeypatch.setenv("FEDCASCADE_TRUSTED_PROXY", "10.0.0.1 10.0.0.2")
    with pytest.raises(SystemExit):
        main(["serve"])
    refused = "port must be in 0..65535, got"
    assert capsys.readouterr().err == f"fedcascade: Invalid value for FEDCASCADE_PORT: {refused} 70000\n"
    with pytest.raises(SystemExit):
        main(["serve", "--port", "70001"])
    assert capsys.readouterr().err == f"fedcascade: Invalid value for --port: {refused} 70001\n"
    monkeypatch.setenv("FEDCASCADE_TRUSTED_PROXY", "10.0.0.1 nowhere")
    with pytest.raises(SystemExit):
        main(["serve", "--port", "0"])
    assert "a trusted proxy must be an IP address, got 'nowhere'" in capsys.readouterr().err


def test_the_command_refuses_an_unfinished_fit_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "warm.npz"
    state = WarmState(sums=make_sums(), users=tuple("abcdef"), policy=POLICY.name, log="x", lists=3, is_complete=False)
    save_warm(path, state)
    with pytest.raises(SystemExit):
        main(["serve", "--store", f"sqlite:///{tmp_path}/store.db", "--port", "0", "--warm", str(path)])
    assert "from an interrupted fit" in capsys.readouterr().err


def test_the_commands_verify_audit_back_up_and_restore(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A backup is taken while a server runs."""
    monkeypatch.chdir(tmp_path)
    with serve_in_process(tmp_path / "store.db") as running:
        agents = [running.enrol() for _ in range(2)]
        for agent in agents:
            agent.exchange(build_unit_upload(1, 0, 3))
        main(["verify", "sqlite:///store.db", "--json"])
        head = json.loads(capsys.readouterr().out)["head"]
        running.operator.revoke(agents[0].agent)
        main(["backup", "sqlite:///store.db", "monday"])
        agents[1].leave()
    main(["verify", "sqlite:///store.db", "--noted", head])
    main(["restore", "monday", "sqlite:///again.db"])
    main(["verify", "sqlite:///again.db", "--noted", head])
    assert "restored as epoch 2-" in capsys.readouterr().out
    main(["audit", "sqlite:///store.db", "--json"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    told = [(record["actor"], record["action"], record["agent"]) for record in records]
    first, second = (agent.agent for agent in agents)
    assert told == [
        ("command line", "set the operator's token", None),
        ("operator", "created enrolment tokens", None),
        (f"agent {first}", "enrolled", first),
        ("operator", "created enrolment tokens", None),
        (f"agent {second}", "enrolled", second),
        ("operator", "revoked", first),
        ("command line", "backed up", None),
        (f"agent {second}", "forgot", second),
    ]
    for arguments, line in (
        (["verify", "sqlite:///missing.db"], "there is no store at 'sqlite:///missing.db'"),
        (["verify", "sqlite:///again.db", "--noted", "2:" + "00" * 32], "is not the one that was noted"),
        (["restore", "missing", "sqlite:///new.db"], "there is no backup 'missing'"),
        (["restore", "monday", "sqlite:///again.db"], "the store is in use"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        said = capsys.readouterr().err
        assert line in said
        assert said.count("\n") == 1
    assert not (tmp_path / "missing.db").exists()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_the_command_of_the_server_is_one_that_the_command_line_understands(path: Path) -> None:
    command = loaded(path)["services"]["server"]["command"]
    called, bound, _ = app.parse_args(command, exit_on_error=False, print_error=False)
    assert called.__name__ == "serve"
    assert bound.arguments["options"].host == "0.0.0.0"


def test_agents_without_groups_are_one_population_and_raise_no_alarm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = ServerProcess(tmp_path, "sqlite:///store.db", "--policy", "population", published=False).start()
    connected = server.connect()
    try:
        for _ in range(3):
            connected.enrol().exchange(build_unit_upload(1, 0, 3))
        main(["agents", "--url", server.url, "--operator-token", str(tmp_path / "operator.token")])
        assert "one population, no groups yet" in capsys.readouterr().out
        text = connected.transport.send("GET", "/metrics", b"", {}).text
        assert "fedcascade_clusters 0.0" in text
        assert "fedcascade_outsized_share 0.0" in text
    finally:
        connected.transport.close()
        server.stop()
