"""Agents and servers in files: to the same bits, and nothing else is read."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedcascade import POLICIES, Agent, PerCategory, Policy, Server, Synthetic, TopK, saved
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.federation.grouping.graph.guarded import GuardedGraph
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.confidence import ProblemSize
from fedcascade.learning.statistics import Statistics
from fedcascade.saved import load_agent, load_server, load_warm, save_agent, save_server
from fedcascade.simulation.reference import play_round
from fedcascade.state_file import AGENT, SERVER, read_state_file, write_state_file

USERS, D, K = 6, 4, 2
WORLD = Synthetic(users=USERS, clusters=2, dimension=D, items=8, seed=5)
ORACLE = TopK(length=K)


def begin(policy: Policy) -> tuple[Server, list[Agent]]:
    problem = ProblemSize(users=USERS, dimension=D, list_length=K, rounds=100)
    fitted = policy.fit_to(problem)
    server = Server(policy=fitted, agents=USERS, dimension=D, truth=WORLD.clusters)
    learners = 1 if fitted.reply_rule.single_learner else USERS
    agents = [Agent(id=user, policy=fitted, problem=problem, oracle=ORACLE) for user in range(learners)]
    return server, agents * (USERS // learners)


def play(server: Server, agents: list[Agent], first: int, last: int) -> list[Any]:
    """Rounds as a simulation plays them; returns the lists and what was sent."""
    events: list[Any] = []
    for t in range(first, last + 1):
        user = WORLD.arrival(t)
        deliver_arrival(server, agents, user)
        played = play_round(WORLD, ORACLE, t, user, agents[user].recommend, agents[user].observe)
        events.append((t, played.shown.items.tolist(), played.regret))
        if played.upload is not None:
            _, downloads = run_exchange(server, agents, played.upload)
            events += [(agent, statistics.gram.tobytes()) for agent, statistics in downloads]
    return events


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_loaded_goes_on_to_the_same_bits(name: str, tmp_path: Path) -> None:
    server, agents = begin(POLICIES[name])
    play(server, agents, 1, 60)
    save_server(tmp_path / "server.npz", server)
    for agent in agents:
        save_agent(tmp_path / f"{agent.id}.npz", agent)
    loaded = load_server(tmp_path / "server.npz")
    resumed = [load_agent(tmp_path / f"{agent.id}.npz") for agent in dict.fromkeys(agents)]
    assert loaded.policy == server.policy
    save_server(tmp_path / "again.npz", loaded)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "server.npz").read_bytes()
    resumed *= USERS // len(resumed)
    assert play(server, agents, 61, 100) == play(loaded, resumed, 61, 100)


def test_lists_without_feedback_are_kept(tmp_path: Path) -> None:
    _, [agent, *_] = begin(POLICIES["population"])
    shown = agent.recommend(WORLD.items(1), WORLD.ties(1, 8))
    save_agent(tmp_path / "agent.npz", agent)
    loaded = load_agent(tmp_path / "agent.npz")
    again = loaded.get_open_list(shown.impression)
    assert again.items.tolist() == shown.items.tolist()
    upload = loaded.observe(again, 0, round_=1, draw=0.5)  # agents of population upload at their first arrival
    assert upload is not None
    assert (loaded.state.arrivals, upload.statistics.clicks, loaded.state.buffer.clicks) == (1, 1, 0)


def test_parts_of_your_own_are_given_again(tmp_path: Path) -> None:
    path = tmp_path / "agent.npz"
    own = replace(POLICIES["fedind"], name="mine", lambda_=2.0)
    problem = ProblemSize(users=1, dimension=D, list_length=K, rounds=10)
    save_agent(path, Agent(id=3, policy=own, problem=problem, oracle=PerCategory(length=3, limit=2)))
    with pytest.raises(ValueError, match=r"its policy mine has custom parts: give it as policy="):
        load_agent(path)
    loaded = load_agent(path, policy=own)
    assert (loaded.id, loaded.policy, loaded.oracle) == (3, own, PerCategory(length=3, limit=2))
    with pytest.raises(ValueError, match="or of another, than fedind"):
        load_agent(path, policy=POLICIES["fedind"])


class Reversed(TopK):
    pass


def test_an_oracle_of_your_own_is_given_again(tmp_path: Path) -> None:
    problem = ProblemSize(users=1, dimension=D, list_length=K, rounds=10)
    save_agent(tmp_path / "a", Agent(id=0, policy=POLICIES["fedind"], problem=problem, oracle=Reversed(length=2)))
    with pytest.raises(ValueError, match="its oracle Reversed is not built in: give it as oracle="):
        load_agent(tmp_path / "a")
    assert load_agent(tmp_path / "a", oracle=Reversed(length=2)).oracle == Reversed(length=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a server that has seen a little."""
    server, agents = begin(POLICIES["fedc3ucb-h"])
    play(server, agents, 1, 30)
    path = tmp_path_factory.mktemp("state") / "server.npz"
    save_server(path, server)
    return path


def rewrite(path: Path, change: Callable[[dict[str, bytes]], object], method: int = zipfile.ZIP_STORED) -> None:
    """Write the members of an NPZ anew after a change of them."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, body in members.items():
            archive.writestr(name, body)


def change_facts(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    def change_members(members: dict[str, bytes]) -> None:
        facts = json.loads(np.load(io.BytesIO(members["facts.npy"])).tobytes())
        change(facts)
        members["facts.npy"] = to_npy(np.frombuffer(json.dumps(facts).encode(), np.uint8))

    rewrite(path, change_members)


def to_npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def make_bomb(members: dict[str, bytes]) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    members["server.rounds.npy"] = header.getvalue()


HOSTILE: dict[str, tuple[Callable[[dict[str, bytes]], object], int, str]] = {
    "objects": (lambda members: members.update({"x.npy": to_npy(np.array([{}], object))}), 0, "of type object"),
    "a path": (lambda members: members.update({"../../x.npy": b""}), 0, r"a member '\.\./\.\./x\.npy'"),
    "another file": (lambda members: members.update({"run.py": b"1"}), 0, "a member 'run.py'"),
    "a huge shape": (make_bomb, 0, "is cut"),
    "compression": (lambda members: members.update({"x.npy": bytes(10**6)}), zipfile.ZIP_DEFLATED, "is compressed"),
    "a missing array": (lambda members: members.pop("server.holdings.gram.npy"), 0, "has no 'server.hold"),
    "no facts": (lambda members: members.pop("facts.npy"), 0, "has no 'facts'"),
    "garbage": (lambda members: members.update({"facts.npy": to_npy(np.frombuffer(b"{", np.uint8))}), 0, "Expecting"),
    "depth": (lambda members: members.update({"facts.npy": to_npy(np.frombuffer(b"[" * 10**5, np.uint8))}), 0, "rec"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_that_is_made_to_do_harm_is_refused_in_one_line(kind: str, whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(whole, tmp_path))
    change, method, words = HOSTILE[kind]
    rewrite(path, change, method)
    with pytest.raises(ValueError, match=words) as refused:
        load_server(path)
    assert str(refused.value).startswith(f"{path} is not a complete state file of fedcascade")
    assert "\n" not in str(refused.value)


def test_members_that_overlap_cannot_claim_more_than_the_file_has(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(whole, tmp_path))
    body = path.read_bytes()
    with zipfile.ZipFile(path, "a") as archive:
        for copy in range(200):  # entries that all point to the first member
            entry = archive.infolist()[0]
            twin = zipfile.ZipInfo(f"x{copy}.npy")
            twin.file_size = twin.compress_size = len(body)
            twin.header_offset, twin.CRC = entry.header_offset, entry.CRC
            archive.filelist.append(twin)
            archive._didModify = True  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="it claims"):
        load_server(path)


def test_every_cut_of_a_file_is_refused(whole: Path, tmp_path: Path) -> None:
    body, path = whole.read_bytes(), tmp_path / "cut.npz"
    for size in range(0, len(body), 211):
        path.write_bytes(body[:size])
        with pytest.raises(ValueError, match="is not a complete state file of fedcascade"):
            load_server(path)


def test_a_flipped_bit_is_refused_or_changes_nothing_that_was_checked(whole: Path, tmp_path: Path) -> None:
    body, path = bytearray(whole.read_bytes()), tmp_path / "flipped.npz"
    at = body.find(b"holdings.gram.npy") + 200
    body[at] ^= 1
    path.write_bytes(body)
    with pytest.raises(ValueError, match="Bad CRC"):
        load_server(path)


def test_newer_and_foreign_files_are_named(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copy(whole, tmp_path))
    change_facts(path, lambda facts: facts.update({"format": 2}))
    with pytest.raises(ValueError, match="has format 2, this fedcascade reads 1: update fedcascade"):
        load_server(path)
    with pytest.raises(ValueError, match="holds a state of kind 'server', not 'agent'"):
        load_agent(whole)
    with pytest.raises(ValueError, match="holds a state of kind 'server', not 'sums'"):
        load_warm(whole)
    with pytest.raises(ValueError, match="there is no file"):
        load_server(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(ValueError, match="it has no 'facts'"):
        load_server(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state["server"]["holdings"].update(gram=np.zeros((2, D, D))), "must have the shape"),
        (lambda state: state["server"]["holdings"].update(count=np.zeros(USERS)), "must hold int64"),
        (lambda state: state["server"]["holdings"]["gram"].__imul__(-1.0), "positive semi-definite"),
        (lambda state: state["server"]["groups"].update(labels=[1]), "must be of type ndarray"),
        (lambda state: state["server"]["groups"].update(labels=np.full(USERS, 2**40)), r"labels must be in 0\.\."),
        (lambda state: state["server"]["groups"].pop("edges"), "groups has no edges"),
        (lambda state: state["server"].update(rounds="many"), "rounds must be a whole number"),
        (lambda state: state["policy"].update(name="fedc3ucb"), "did you mean"),
        (lambda state: state["policy"]["constants"].update(alpha_d="-1"), "alpha_d must be a finite number > 0"),
        (lambda state: state.update(dimension=10**12), "its dimension must be 4"),
        (lambda state: state.pop("server"), "it has no 'server'"),
    ],
)
def test_a_state_that_no_server_has_is_refused_in_one_line(
    change: Callable[[dict[str, Any]], None], words: str, whole: Path, tmp_path: Path
) -> None:
    state = read_state_file(whole, SERVER)
    change(state)
    write_state_file(tmp_path / "odd.npz", SERVER, state)
    with pytest.raises(ValueError, match=words) as refused:
        load_server(tmp_path / "odd.npz")
    assert "\n" not in str(refused.value)


def test_a_state_holds_what_it_is_given_to_the_bit(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "numbers": [1, 0.1, -0.0, float("inf"), None, True, "ü"],
        "bits": np.array([[True], [False]]),
        "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        "none": np.zeros((0, 3), np.float32),
        "pools": {7: Statistics(np.eye(2), np.ones(2), 3, 2, 1)},
    }
    write_state_file(tmp_path / "state", "test", state)
    again = read_state_file(tmp_path / "state", "test")
    assert again["numbers"] == state["numbers"]
    assert [again[name].dtype for name in ("bits", "none")] == [bool, np.float32]
    assert again["fortran"].tolist() == state["fortran"].tolist()
    assert again["pools"][7].count == 3
    for value in ({1: 2}, b"x", np.array([None])):
        with pytest.raises((TypeError, ValueError), match="a state"):
            write_state_file(tmp_path / "other", "test", {"x": value})


def test_a_full_disk_leaves_the_old_file(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, before = Path(shutil.copy(whole, tmp_path)), whole.read_bytes()
    server = load_server(path)

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedcascade.platforms.sync_file", fail)
    with pytest.raises(ValueError, match=r"cannot write .*: No space left on device"):
        save_server(path, server)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    assert saved.find_policy(saved.describe_policy(server.policy), None) == server.policy


def list_leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all arrays and plain values in a state."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in list_leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for key, item in enumerate(value) for leaf in list_leaves(item, (*path, key))]
    if isinstance(value, Statistics):
        return [(*path, name) for name in ("gram", "moment", "count", "clicks", "rounds")]
    return [path]


NUMBERS = (0, -1, 1, 2, 63, 2**31, 2**62, -(2**62), 0.5, -0.5, 1e-300, 1e300, -1e300, float("inf"), float("nan"))


def damage(value: Any, random: np.random.Generator) -> Any:
    """Another value in the place of one: another number somewhere, another shape or another type."""
    kind, number = int(random.integers(0, 8)), NUMBERS[int(random.integers(0, len(NUMBERS)))]
    if not isinstance(value, np.ndarray):
        return [number, -1, 10**30, "x", None, [], np.zeros(2), {}][kind]
    if not value.ndim or not value.size:
        return np.zeros(3, value.dtype)
    changed = value.copy()
    with np.errstate(all="ignore"):
        if kind < 4:
            place = tuple(int(random.integers(0, size)) for size in value.shape)
            finite = number if np.isfinite(number) or value.dtype.kind == "f" else 7
            changed[place] = np.array(float(finite)).astype(value.dtype)
            if kind == 2 and value.ndim >= 2 and value.shape[-1] == value.shape[-2]:
                changed[(*place[:-2], place[-1], place[-2])] = changed[place]  # symmetric
            return changed
        shapes = {4: value[: len(value) // 2].copy(), 5: np.concatenate([value, value])}
        return shapes[kind] if kind in shapes else value.astype(np.float32 if kind == 6 else np.int32)


def put(state: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> None:
    for key in path[:-1]:
        state = getattr(state, key) if isinstance(state, Statistics) else state[key]
    if isinstance(state, Statistics):
        object.__setattr__(state, path[-1], change(getattr(state, path[-1])))
    else:
        state[path[-1]] = change(state[path[-1]])


GUARDED = replace(POLICIES["fedc3ucb-h"], grouping=GuardedGraph(), name="guarded")
FUZZED = {
    name: POLICIES[name] for name in ("population", "fedc3ucb-h", "phase-fclub", "async-linucb", "async-linucb-am")
}
FUZZED |= {"guarded": GUARDED, "drift": POLICIES["population"].with_constants(drift="restart")}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, Path, Policy]]:
    """Files of servers and agents of all kinds, which have seen a little."""
    folder, files = tmp_path_factory.mktemp("states"), []
    for name, policy in FUZZED.items():
        server, agents = begin(policy)
        play(server, agents, 1, 60)
        save_server(folder / f"{name}.server", server)
        save_agent(folder / f"{name}.agent", agents[0])
        files += [(SERVER, folder / f"{name}.server", server.policy), (AGENT, folder / f"{name}.agent", server.policy)]
    return files


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_a_damaged_state_is_refused_or_works(seed: int, states: list[tuple[str, Path, Policy]], tmp_path: Path) -> None:
    """Whatever one field holds: one line at loading, or an agent or server whose numbers are finite."""
    random = np.random.default_rng(seed)
    kind, path, policy = states[int(random.integers(0, len(states)))]
    state = read_state_file(path, kind)
    leaves = [leaf for leaf in list_leaves(state) if leaf[0] not in ("policy", "oracle")]
    leaf = leaves[int(random.integers(0, len(leaves)))]
    put(state, leaf, lambda value: damage(value, random))
    try:
        write_state_file(tmp_path / "odd", kind, state)
    except (TypeError, ValueError, AttributeError, IndexError, OverflowError):
        return  # no file can hold it
    given_policy = policy if policy.name == "guarded" else None
    try:
        loaded: Any = (load_server if kind == SERVER else load_agent)(tmp_path / "odd", policy=given_policy)
    except ValueError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return
    use_server(loaded, random) if kind == SERVER else use_agent(loaded, random)


def test_a_buffer_beyond_the_agent_s_own_data_is_refused(
    states: list[tuple[str, Path, Policy]], tmp_path: Path
) -> None:
    [path] = [path for kind, path, policy in states if kind == AGENT and path.stem == "population"]
    state = read_state_file(path, AGENT)
    state["agent"]["buffer"] = state["agent"]["buffer"].scale(100.0)
    assert state["agent"]["buffer"].gram.any()
    write_state_file(tmp_path / "odd", AGENT, state)
    with pytest.raises(ValueError, match="positive semi-definite"):
        load_agent(tmp_path / "odd")


def use_server(server: Server, random: np.random.Generator) -> None:
    """Exchanges, a deletion and a newcomer."""
    agents = len(server.holdings)
    for number in range(6):
        total = Statistics.zero(server.holdings.dimension)
        for row in random.normal(size=(6, total.dimension)).astype(np.float32) / 8:
            total = total.observe(row[None], 0 if row[0] > 0 else None)
        upload = Upload(agent=number % agents, sequence=1, cause=Cause.FORCED, statistics=total)
        others = [replace(upload, agent=each) for each in server.agents_to_collect(upload)]
        for _, download in server.receive(upload, *others):
            assert np.isfinite(download.gram).all()
            assert np.isfinite(download.moment).all()
    if server.policy.name not in ("phase-fclub", "async-linucb", "async-linucb-am"):
        server.forget(0)
        server.join()


def use_agent(agent: Agent, random: np.random.Generator) -> None:
    """Rounds."""
    for number in range(6):
        items = random.normal(size=(8, agent.problem.dimension)) / 8
        shown = agent.recommend(items, np.arange(8, dtype=np.uint32))
        upload = agent.observe(shown, 0, round_=10 + number, draw=0.5)
        assert np.isfinite(agent.state.decision.theta).all()
        assert upload is None or np.isfinite(upload.statistics.gram).all()
