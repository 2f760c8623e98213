"""The dashboard in a real browser: live, right at the end, whole after a restart, quiet, and usable by everyone."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.service.client import Operator
from fedcascade.service.live.report import Reporter
from fedcascade.service.swarm import swarm
from fedcascade.service.transport import Http
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Recorder, Trace

from ..helpers import TOKEN, Process
from .conftest import Seen

WORLD = Synthetic(users=12, clusters=3, dimension=6, items=20, seed=3)
POLICY = POLICIES["fedc3ucb-h"].tuned(alpha_d=1.5, beta=5.0)
ROUNDS, PAUSES = 3_000, (300, 900)
REFUSED_CONNECTION = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")


class Run:
    """A swarm in a thread of its own, which stops at some rounds until it may go on."""

    def __init__(self, process: Process) -> None:
        self.trace: Trace | None = None
        self.reached = {t: threading.Event() for t in PAUSES}
        self.may_pass = {t: threading.Event() for t in PAUSES}
        self.thread = threading.Thread(target=self._play, args=[process], daemon=True)
        self.thread.start()

    def _play(self, process: Process) -> None:
        operator = Operator(Http(process.url), TOKEN)
        self.reporter = Reporter(operator)
        self.trace = swarm(
            WORLD,
            POLICY,
            rounds=ROUNDS,
            operator=operator,
            new_transport=lambda: Http(process.url),
            folder=None,
            list_length=3,
            checkpoints=1,
            watch=self._watch,
        )
        operator.transport.close()

    def _watch(self, t: int, recorder: Recorder) -> None:
        self.reporter(t, recorder)
        if t in self.reached:
            self.reached[t].set()
            assert self.may_pass[t].wait(60)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path, "sqlite:///store.db", "--alpha-d", "1.5", "--beta", "5", dimension=6).start()
    started.running().transport.close()
    yield started
    started.stop()


def log_in(seen: Seen, url: str) -> None:
    seen.page.goto(url)
    seen.page.fill("#token", TOKEN)
    seen.page.click("#login button")
    seen.page.wait_for_selector("#main[data-position]")


def held(process: Process) -> int:
    """How many exchanges the server has."""
    running = process.running()
    position = running.operator.overview().position
    running.transport.close()
    return position


def test_the_page_follows_a_swarm_through_a_crash_and_ends_right(seen: Seen, process: Process) -> None:
    log_in(seen, process.url)
    assert seen.data("uploads") == "0"
    run = Run(process)
    first, second = PAUSES

    assert run.reached[first].wait(60)
    early = held(process)
    assert early > 0
    seen.wait_for("uploads", early)  # live: nobody has touched the page
    run.may_pass[first].set()
    assert run.reached[second].wait(60)
    seen.wait_for("uploads", held(process))
    assert seen.problems == []

    process.kill()
    seen.page.wait_for_selector('#status[data-kind="lost"]')
    process.start()
    seen.page.wait_for_selector('#status[data-kind="live"]', timeout=20_000)
    run.may_pass[second].set()
    run.thread.join(60)
    assert run.trace is not None

    simulated = simulate(WORLD, POLICY, rounds=ROUNDS, oracle=TopK(length=3), checkpoints=1, engine="reference")
    assert len(run.trace.ledger) == len(simulated.ledger)
    seen.wait_for("uploads", len(simulated.ledger))  # no gap, nothing twice
    assert seen.data("position") == str(len(simulated.ledger))
    assert seen.data("pictures") == "1"  # and that without asking for everything again
    assert seen.data("clusters") == str(simulated.clusters) == "3"
    assert seen.page.locator("#number-clusters").inner_text().startswith("3")
    counted = seen.page.locator("#causes .legend li").all_inner_texts()
    assert {text.strip() for text in counted} == {
        f"{cause} {sum(one.cause == cause for one in simulated.ledger)}"
        for cause in {o.cause for o in simulated.ledger}
    }
    agents = table(seen, "ages")
    assert sum(int(row[3]) for row in agents) == len(simulated.ledger)
    assert sorted(int(row[1]) for row in table(seen, "clusters")) == [4, 4, 4]
    regret = table(seen, "regret")
    assert float(regret[-1][1].replace(",", "")) == pytest.approx(simulated.regret, abs=0.06)

    seen.problems = [one for one in seen.problems if not any(name in one for name in REFUSED_CONNECTION)]
    seen.assert_quiet(process.url)
    seen.screenshot("swarm")


def table(seen: Seen, name: str) -> list[list[str]]:
    """The table behind a figure, as somebody reads it who cannot see the figure."""
    details = seen.page.locator(f"details:has(#{name}-table)")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    rows = seen.page.locator(f"#{name}-table tbody tr")
    rows.first.wait_for()
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def test_one_can_look_back_and_return(seen: Seen, process: Process) -> None:
    run = Run(process)
    for event in run.may_pass.values():
        event.set()
    run.thread.join(60)
    log_in(seen, process.url)
    seen.wait_for("clusters", 3)
    total = int(seen.data("uploads") or 0)
    slider = seen.page.locator("#when")
    slider.focus()
    for _ in range(3):
        seen.page.keyboard.press("PageDown")
    seen.page.wait_for_selector('#status[data-kind="past"]')
    past = int(seen.data("uploads") or 0)
    assert 0 < past < total
    seen.page.click("#now")
    seen.wait_for("uploads", total)
    assert seen.data("clusters") == "3"
    seen.assert_quiet(process.url)


def test_a_wrong_token_opens_nothing_and_leaving_closes(seen: Seen, process: Process) -> None:
    seen.page.goto(process.url)
    seen.page.fill("#token", "not the token, but as long as one")
    seen.page.click("#login button")
    seen.page.wait_for_selector("#login-problem:has-text('not the operator')")
    assert seen.violations() == []
    log_in(seen, process.url)
    [cookie] = seen.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    seen.page.click("#leave")
    seen.page.wait_for_selector("#login:not([hidden])")
