"""Files that are made to do harm: saved agents and servers, logs that unpack or pad to more than a machine has."""

import gzip
import json
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

import numpy as np

from attack.arena import Arena
from attack.registry import Finding, attack

MEMORY = 1_500  # megabytes: the address space beyond what a child needs to start is not limited, so peaks are measured


def run_child(folder: Path, code: str) -> tuple[int, float, str]:
    """Run Python code in a folder; return its exit code, peak of memory in megabytes, and last line."""
    ending = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    script = (
        f"try:\n{textwrap.indent(textwrap.dedent(code), '    ')}\nexcept ValueError as error:\n    print('refused')\n"
    )
    limit = "import resource; resource.setrlimit(resource.RLIMIT_AS, (12 << 30, 12 << 30))\n"
    command = [sys.executable, "-c", f"{limit}{script}{ending}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=300, check=False)
    lines = done.stdout.split()
    return done.returncode, float(lines[-1]) if done.returncode == 0 else 12_288.0, lines[0] if lines else ""


SAVE = """
import numpy as np
from fedcascade import POLICIES, Agent, Server, Synthetic, TopK
from fedcascade.federation.delivery import deliver_arrival, run_exchange
from fedcascade.learning.confidence import ProblemSize
from fedcascade.saved import save_server
from fedcascade.simulation.reference import play_round
users, oracle = Synthetic(users=6, clusters=2, dimension=4, items=8, seed=5), TopK(length=2)
problem = ProblemSize(users=6, dimension=4, list_length=2, rounds=100)
server = Server(policy=POLICIES["population"], agents=6, dimension=4)
agents = [Agent(id=user, policy=POLICIES["population"], problem=problem, oracle=oracle) for user in range(6)]
for t in range(1, 61):
    user = users.arrival(t)
    deliver_arrival(server, agents, user)
    played = play_round(users, oracle, t, user, agents[user].recommend, agents[user].observe)
    if played.upload is not None:
        run_exchange(server, agents, played.upload)
save_server("server.npz", server)
print("saved")
"""
USE = """
import numpy as np
from fedcascade.federation.messages import Cause, Upload
from fedcascade.learning.statistics import Statistics
from fedcascade.saved import load_server
server = load_server("odd.npz")
for number in range(8):
    total = Statistics(np.eye(4), np.zeros(4), 4, 0, 4)
    for download in server.receive(Upload(agent=number % 6, sequence=1, cause=Cause.FORCED, statistics=total)):
        statistics = download[1] if isinstance(download, tuple) else download.statistics
        assert np.isfinite(statistics.gram).all()
server.forget(0)
print("works")
"""


def list_damages(path: Path) -> list[tuple[str, np.ndarray]]:
    """Return each array of a file resized, and with a number that no server has."""
    damages = []
    with np.load(path) as arrays:
        for name in arrays.files:
            array = arrays[name]
            if name == "facts" or not array.size:
                continue
            damages.append((name, np.concatenate([array, array])))
            changed = array.copy()
            changed.flat[changed.size // 2] = (
                2**40 if array.dtype.kind == "i" else 1 if array.dtype.kind == "b" else 1e300
            )
            damages.append((name, changed))
    return damages


@attack(203, "saved server with a damaged array", sends="24 files, one array changed in each", holds="refused or works")
def damage_arrays(arena: Arena) -> Finding:
    run_child(arena.folder, SAVE)
    damages = list_damages(arena.folder / "server.npz")[::3][:24]
    outcomes = {"refused": 0, "works": 0, "killed": 0, "failed later": 0}
    for name, array in damages:
        with np.load(arena.folder / "server.npz") as arrays:
            np.savez(arena.folder / "odd.npz", **({each: arrays[each] for each in arrays.files} | {name: array}))
        code, _, line = run_child(arena.folder, USE)
        outcomes[line if code == 0 and line in outcomes else "killed" if code < 0 else "failed later"] += 1
    text = ", ".join(f"{count} {what}" for what, count in outcomes.items() if count)
    return Finding(text, outcomes["killed"] == outcomes["failed later"] == 0)


@attack(207, "one member, 20,000 references", sends="a saved file of 3 MB", holds="refused; at most 1 GB")
def refer_often(arena: Arena) -> Finding:
    run_child(arena.folder, SAVE)
    with np.load(arena.folder / "server.npz") as arrays:
        members = {name: arrays[name] for name in arrays.files}
    facts = json.loads(members["facts"].tobytes())
    facts["state"]["more"] = [{"$statistics": "large"} for _ in range(20_000)]
    members |= {
        "large.gram": np.eye(600)[None],
        "large.moment": np.zeros((1, 600)),
        "large.counts": np.zeros((1, 3), np.int64),
    }
    members["facts"] = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    np.savez(arena.folder / "odd.npz", **members)
    code, peak, line = run_child(arena.folder, "from fedcascade.saved import load_server; load_server('odd.npz')")
    return Finding(f"{line or 'broke off'}, peak {peak:,.0f} MB", code == 0 and line == "refused" and peak < 1_000)


READ = (
    "from fedcascade.data.logs.reader import read_log\nfor batch in read_log('{}').batches():\n    pass\nprint('read')"
)


@attack(207, "one long list among short ones", sends="a log of 1.6 MB", holds="read or refused; at most 1.5 GB")
def pad_lists(arena: Arena) -> Finding:
    rows = [
        "user,items,clicks",
        "a," + " ".join(map(str, range(9_000))) + ",0",
        *(f"u{row},1 2,0" for row in range(90_000)),
    ]
    (arena.folder / "log.csv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    code, peak, line = run_child(arena.folder, READ.format("log.csv"))
    return Finding(f"{line or 'broke off'}, peak {peak:,.0f} MB", code == 0 and peak < MEMORY)


@attack(207, "one line of 1.4 GB", sends="a .csv.gz of 1.4 MB", holds="refused; at most 1 GB")
def unpack_line(arena: Arena) -> Finding:
    with gzip.open(arena.folder / "log.csv.gz", "wb", compresslevel=9) as file:
        file.write(b"user,items,clicks\n")
        for _ in range(1_400):
            file.write(b"1 " * 500_000)
    code, peak, line = run_child(arena.folder, READ.format("log.csv.gz"))
    return Finding(f"{line or 'broke off'}, peak {peak:,.0f} MB", code == 0 and line == "refused" and peak < 1_000)


@attack(214, "saved agent read by others", sends="save_agent with the usual umask", holds="mode 600")
def read_saved(arena: Arena) -> Finding:
    run_child(arena.folder, SAVE)
    mode = (arena.folder / "server.npz").stat().st_mode & 0o777
    return Finding(f"mode {mode:o}", mode == 0o600 and zipfile.is_zipfile(arena.folder / "server.npz"))
