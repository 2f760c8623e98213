"""The npm package: it agrees with the Python agent, its types hold, and it contains what it should."""

import json
import re
import shutil
import subprocess
import tarfile
from importlib.resources import files
from pathlib import Path

import pytest
from vectors.arithmetic import SERVED

from fedcascade.federation.policies import POLICIES
from fedcascade.service.protocol.arms import choose_arm
from fedcascade.service.server.serve import ServerSettings

from ..service.helpers import ServerProcess
from .conftest import PACKAGE, RunNode


def test_the_agent_in_javascript_agrees_with_every_vector_in_node(run_node: RunNode) -> None:
    printed = run_node("--test", "test/").stdout
    assert sum(map(int, re.findall(r": (\d+) cases", printed))) >= 500


def test_there_are_vectors_of_every_policy_that_a_server_runs() -> None:
    served = set[str]()
    for name, policy in POLICIES.items():
        try:
            ServerSettings(store="sqlite://", policy=policy, dimension=20)
        except ValueError:
            continue
        served.add(name)
    assert served == set(SERVED)


def test_types_hold(node: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    if not (PACKAGE / "node_modules" / "typescript").exists():
        installed = subprocess.run([npm, "ci", "--ignore-scripts"], cwd=PACKAGE, capture_output=True, timeout=120)
        if installed.returncode != 0:
            pytest.skip("npm cannot install TypeScript here")
    tsc = PACKAGE / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, str(tsc), "--noEmit"], cwd=PACKAGE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_package_is_packed_from_a_clean_checkout_and_its_types_hold_in_typescript(
    node: str, tmp_path: Path
) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    shutil.copytree(PACKAGE, tmp_path / "agent", ignore=shutil.ignore_patterns("node_modules", "types", "vectors"))
    packed = subprocess.run([npm, "pack"], cwd=tmp_path / "agent", capture_output=True, text=True, timeout=120)
    if not (tmp_path / "agent" / "node_modules" / "typescript").exists():
        pytest.skip("npm cannot install TypeScript here")
    assert packed.returncode == 0, packed.stderr
    [archive] = (tmp_path / "agent").glob("*.tgz")
    with tarfile.open(archive) as opened:
        names = {name.removeprefix("package/") for name in opened.getnames()}
    modules = {f"src/{path.name}" for path in (PACKAGE / "src").glob("*.js")}
    types = {name.replace("src/", "types/").replace(".js", ".d.ts") for name in modules}
    assert names == {"README.md", "package.json"} | modules | types
    install_for_typescript(tmp_path, archive)
    tsc = tmp_path / "agent" / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([node, str(tsc), "-p", str(tmp_path / "user")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def install_for_typescript(folder: Path, archive: Path) -> None:
    """Install the package for a user that compiles the README's sample as TypeScript."""
    user, installed = folder / "user", folder / "user" / "node_modules" / "fedcascade-agent"
    installed.parent.mkdir(parents=True)
    shutil.unpack_archive(archive, folder / "unpacked", "gztar")
    (folder / "unpacked" / "package").rename(installed)
    text = (installed / "README.md").read_text(encoding="utf-8")
    [sample, *_] = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    given = "declare const token: string, items: number[][], render: (items: number[]) => void;\n"
    (user / "sample.ts").write_text(sample + given, encoding="utf-8")
    (user / "package.json").write_text('{"type": "module"}', encoding="utf-8")
    options = {
        "module": "nodenext",
        "target": "es2022",
        "strict": True,
        "noEmit": True,
        "lib": ["es2022", "dom"],
        "types": [],
    }
    (user / "tsconfig.json").write_text(json.dumps({"compilerOptions": options}), encoding="utf-8")


def test_users_have_the_arm_that_python_gives_them(node: str) -> None:
    users = [f"user-{number} é" for number in range(50)]
    script = f"""import {{ chooseArm }} from "{(PACKAGE / "src" / "index.js").as_uri()}";
        const options = {{ share: 0.4, experiment: "x" }}, users = {json.dumps(users)};
        const arms = await Promise.all(users.map((user) => chooseArm(user, options)));
        console.log(JSON.stringify(arms));"""
    done = subprocess.run([node, "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [list(choose_arm(user, share=0.4, experiment="x")) for user in users]


def test_node_exits_when_the_agent_is_idle(node: str, tmp_path: Path) -> None:
    """The script closes nothing; uploads that are not answered keep the process alive, and nothing else does."""
    server = ServerProcess(tmp_path, "sqlite:///store.db", "--policy", "population", dimension=3).start()
    try:
        running = server.connect()
        token = running.operator.create_tokens()[0]
        running.transport.close()
        script = f"""import {{ connect, always }} from "{(PACKAGE / "src" / "index.js").as_uri()}";
            const policy = (own) => ({{ ...own, trigger: always }});
            const agent = await connect({{ url: "{server.url}", token: "{token}", minObservations: 0, policy }});
            await agent.feedback(agent.recommend([[1, 0, 0]], {{ k: 1 }}), {{ clicked: 0 }});
            process.on("exit", () => console.log(agent.unsent, agent.state.confirmed.rounds));"""
        done = subprocess.run([node, "--input-type=module", "-e", script], capture_output=True, text=True, timeout=30)
    finally:
        server.stop()
    assert (done.stdout, done.returncode) == ("0 1\n", 0), done.stderr


REFUSED_FEATURES = """
import { connect, always } from "%(package)s/index.js";
import { FileStore } from "%(package)s/file-store.js";
const told = [], minted = [], policy = (own) => ({ ...own, trigger: always });
const token = () => { minted.push("%(token)s"); return minted.at(-1); };
const note = (error) => told.push([error.name, error.message]);
const options = { token, policy, minObservations: 0, pauses: [0.01, 0.1] };
const open = (features, url = "%(first)s") =>
  connect({ url, features, ...options, store: new FileStore("agent.json") });
for (const features of ["v2", "v1:bb", ""]) await open(features).catch(note);
const before = minted.length, agent = await open("v1");
await agent.close();
await open("v2").catch(note);
const moved = await open(undefined, "%(second)s");
await moved.feedback(moved.recommend([[1, 0, 0]], { k: 1 }), { clicked: 0 });
const isTold = () => moved.trouble?.includes("features");
for (let tries = 0; tries < 500 && !isTold(); tries += 1) await new Promise((resolve) => setTimeout(resolve, 20));
console.log(JSON.stringify({ told, before, minted: minted.length, trouble: moved.trouble, unsent: moved.unsent }));
await moved.close();
"""


def test_servers_of_other_features_are_refused_before_a_token_is_fetched_or_used(node: str, tmp_path: Path) -> None:
    servers = [
        ServerProcess(
            tmp_path / label, "sqlite:///store.db", "--policy", "population", "--features", f"{label}:aa"
        ).start()
        for label in ("v1", "v2")
    ]
    try:
        first, second = (server.connect() for server in servers)
        names = {"package": (PACKAGE / "src").as_uri(), "token": first.operator.create_tokens()[0]}
        script = REFUSED_FEATURES % (names | {"first": first.url, "second": second.url})
        done = subprocess.run(
            [node, "--input-type=module", "-e", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        enrolled = [running.operator.fetch_overview().enrolled for running in (first, second)]
        for running in (first, second):
            running.transport.close()
    finally:
        for server in servers:
            server.stop()
    found = json.loads(done.stdout)
    words = "the server has features 'v1:aa', the page '{}': connect to a server of the page's, with a store of its own"
    assert found["told"] == [["AgentError", words.format(named)] for named in ("v2", "v1:bb", "", "v2")]
    assert (found["before"], found["minted"], enrolled) == (0, 1, [1, 0])
    assert "the server has features 'v2:aa', this agent 'v1:aa': use the server that it enrolled at" in found["trouble"]
    assert found["unsent"] == 1


PRIVATE_UPLOADS = """
import { connect } from "%(package)s/index.js";
import { FileStore } from "%(package)s/file-store.js";
const told = [], minted = [], token = () => { minted.push("%(token)s"); return minted.at(-1); };
const open = (url, mostEpsilon) =>
  connect({ url, token, mostEpsilon, pauses: [0.01, 0.1], store: new FileStore("agent.json") });
const refuse = (...given) => open(...given).then(() => told.push("taken"), (error) => told.push(error.message));
for (const most of [Infinity, 2]) await refuse("%(plain)s", most);
await refuse("%(private)s", 1.5);
const before = minted.length, items = Array.from({ length: 6 }, (_, item) => [item / 8, 0.5, -item / 16]), sent = [];
for (const lists of [5, 6]) {
  const agent = await open("%(private)s", 2);
  agent.addEventListener("upload", ({ detail }) => sent.push(detail.upload.statistics.rounds));
  for (let list = 0; list < lists; list += 1) {
    await agent.feedback(agent.recommend(items, { k: 3 }), { clicked: list %% 3 ? 0 : null });
  }
  const isSent = await agent.flush(20), { trouble, lost, privacy, state } = agent, { first, own, confirmed } = state;
  told.push({ isSent, trouble, lost, spent: privacy.spent, first: first.rounds, own: own.total.rounds,
    confirmed: [confirmed.rounds, confirmed.count] });
  await agent.close();
}
console.log(JSON.stringify({ told, before, minted: minted.length, sent }));
"""


def test_a_private_server_takes_uploads_with_noise_and_one_with_less_privacy_is_refused_before_a_token(
    node: str, tmp_path: Path
) -> None:
    options = "--policy", "population"
    servers = [
        ServerProcess(tmp_path / "plain", "sqlite:///store.db", *options, dimension=3).start(),
        ServerProcess(
            tmp_path / "private", "sqlite:///store.db", *options, "--privacy", "epsilon=2", dimension=3
        ).start(),
    ]
    try:
        plain, private = (server.connect() for server in servers)
        names = {"package": (PACKAGE / "src").as_uri(), "token": private.operator.create_tokens()[0]}
        script = PRIVATE_UPLOADS % (names | {"plain": plain.url, "private": private.url})
        done = subprocess.run(
            [node, "--input-type=module", "-e", script], cwd=tmp_path, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        enrolled = [running.operator.fetch_overview().enrolled for running in (plain, private)]
        for running in (plain, private):
            running.transport.close()
    finally:
        for server in servers:
            server.stop()
    found = json.loads(done.stdout)
    wanted = "this agent wants private uploads of epsilon <= {} and delta <= 0.00001 for a list, and the server offers "
    *lines, first, second = found["told"]
    assert lines == [
        *(f"{wanted.format(most)}none" for most in ("Infinity", 2)),
        f"{wanted.format(1.5)}epsilon 2 and delta 0.000001 for a list",
    ]
    assert (found["before"], found["minted"], enrolled) == (0, 1, [0, 1])
    kept = {"isSent": True, "trouble": None, "lost": 0, "spent": 2}
    assert first == kept | {"first": 1, "own": 5, "confirmed": [4, 4]}
    assert second == kept | {"first": 3, "own": 11, "confirmed": [8, 8]}
    assert found["sent"] == [1, 1, 2, 4]


def test_the_wheel_has_the_modules() -> None:
    assets = files("fedcascade.service.agent") / "assets"
    assert (assets / "index.js").read_bytes() == (PACKAGE / "src" / "index.js").read_bytes()


def test_the_lock_file_has_versions_and_hashes_and_no_address() -> None:
    text = (PACKAGE / "package-lock.json").read_text(encoding="utf-8")
    assert "://" not in text
    packages = [package for name, package in json.loads(text)["packages"].items() if name]
    assert packages
    assert all({"version", "integrity"} <= package.keys() for package in packages)
