"""The dashboard in a real browser: live, right at the end, whole after a restart, quiet, and usable by everyone."""

import http.client
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.demo.live import build_environment, build_policy
from fedcascade.demo.options import DemoSettings, SwarmOptions
from fedcascade.demo.swarm import RegretReporter, run_swarm
from fedcascade.environments.synthetic import Synthetic
from fedcascade.federation.policies import POLICIES
from fedcascade.learning.oracles import TopK
from fedcascade.service.agent.client import OperatorClient
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.dashboard.routes import COOKIE
from fedcascade.service.store.open import open_store
from fedcascade.simulation.engines import simulate
from fedcascade.simulation.trace import Recorder, Trace

from ..service.dashboard.browser import BrowserPage, record_tasks
from ..service.helpers import TOKEN, ServerProcess

WORLD = Synthetic(users=12, clusters=3, dimension=6, items=20, seed=3)
POLICY = POLICIES["fedc3ucb-h"].with_constants(alpha_d=1.5, beta=5.0)
ROUNDS, PAUSES = 3_000, (300, 900)
REFUSED_CONNECTION = ("ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE_CHUNKED_ENCODING", "ERR_CONNECTION_RESET")


class SwarmThread:
    """A swarm in a thread of its own, which stops at some rounds until it may go on."""

    def __init__(self, process: ServerProcess) -> None:
        self.trace: Trace | None = None
        self.reached = {t: threading.Event() for t in PAUSES}
        self.may_pass = {t: threading.Event() for t in PAUSES}
        self.thread = threading.Thread(target=self._play, args=[process], daemon=True)
        self.thread.start()

    def _play(self, process: ServerProcess) -> None:
        operator = OperatorClient(HttpTransport(process.url), TOKEN)
        self.reporter = RegretReporter(operator)
        self.trace = run_swarm(
            WORLD,
            SwarmOptions(rounds=ROUNDS, checkpoints=1, lockstep=True),
            operator=operator,
            transport=HttpTransport(process.url),
            oracle=TopK(length=3),
            after_round=self._finish_round,
        )
        operator.transport.close()

    def _finish_round(self, t: int, recorder: Recorder) -> None:
        self.reporter.report_round(t, recorder)
        if t in self.reached:
            self.reached[t].set()
            assert self.may_pass[t].wait(60)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    started = ServerProcess(tmp_path, "sqlite:///store.db", "--alpha-d", "1.5", "--beta", "5", dimension=6).start()
    started.connect().transport.close()
    yield started
    started.stop()


def log_in(browser_page: BrowserPage, url: str) -> None:
    browser_page.page.goto(url)
    browser_page.page.fill("#token", TOKEN)
    browser_page.page.click("#login button")
    browser_page.page.wait_for_selector("#main[data-position]")


ASSETS = Path(str(files("fedcascade.service.dashboard") / "assets"))
LABELS_OF_AGES = """async ([width, days]) => {
  const { drawDots } = await import("/live/assets/chart-primitives.js");
  const element = document.createElement("div");
  element.style.width = `${width}px`;
  document.body.append(element);
  drawDots(element, [{ agent: 1, age: days * 86_400_000, colour: 1 }], { label: "ages" });
  const labels = [...element.querySelectorAll("text")];
  const places = labels.map((label) => [label, label.getBoundingClientRect()]);
  element.remove();
  return places.map(([{ textContent }, { left, right }]) => [textContent, left, right]);
}"""


def test_labels_of_ages_do_not_touch(browser_page: BrowserPage) -> None:
    page = browser_page.page
    page.route("http://127.0.0.1/**", lambda route: route.fulfill(body="<!doctype html>", content_type="text/html"))
    page.route("**/live/assets/*", lambda route: route.fulfill(path=ASSETS / route.request.url.rpartition("/")[2]))
    page.goto("http://127.0.0.1/")
    for width, days in product((300, 600, 1200), (0.0001, 0.02, 0.9, 30.0)):
        labels = page.evaluate(LABELS_OF_AGES, [width, days])
        assert labels[0][0] == "now"
        assert len(labels) > 1
        assert [text for (_, _, right), (text, left, _) in pairwise(labels) if left < right + 4] == []


def count_exchanges(process: ServerProcess) -> int:
    """How many exchanges the server has."""
    running = process.connect()
    position = running.operator.fetch_overview().position
    running.transport.close()
    return position


def test_the_page_follows_a_swarm_through_a_crash_and_ends_right(
    browser_page: BrowserPage, process: ServerProcess
) -> None:
    log_in(browser_page, process.url)
    assert browser_page.read_figure("uploads") == "0"
    run = SwarmThread(process)
    first, second = PAUSES

    assert run.reached[first].wait(60)
    early = count_exchanges(process)
    assert early > 0
    browser_page.wait_for("uploads", early)  # live: nobody has touched the page
    run.may_pass[first].set()
    assert run.reached[second].wait(60)
    browser_page.wait_for("uploads", count_exchanges(process))
    assert browser_page.problems == []

    process.kill()
    browser_page.page.wait_for_selector('#status[data-kind="lost"]')
    process.start()
    browser_page.page.wait_for_selector('#status[data-kind="live"]', timeout=20_000)
    run.may_pass[second].set()
    run.thread.join(60)
    assert run.trace is not None

    simulated = simulate(WORLD, POLICY, rounds=ROUNDS, oracle=TopK(length=3), checkpoints=1, engine="reference")
    assert len(run.trace.ledger) == len(simulated.ledger)
    browser_page.wait_for("uploads", len(simulated.ledger))  # no gap, nothing twice
    assert browser_page.read_figure("position") == str(len(simulated.ledger))
    assert browser_page.read_figure("views") == "2"  # one per connection
    assert browser_page.read_figure("clusters") == str(simulated.clusters) == "3"
    assert browser_page.page.locator("#number-clusters").inner_text().startswith("3")
    legend = browser_page.page.locator("#causes .legend li").all_inner_texts()
    causes = Counter(exchange.cause for exchange in simulated.ledger)
    assert {text.strip() for text in legend} == {f"{cause} {times}" for cause, times in causes.items()}
    agents = read_table(browser_page, "ages")
    assert sum(int(row[3]) for row in agents) == len(simulated.ledger)
    assert sorted(int(row[1]) for row in read_table(browser_page, "clusters")) == [4, 4, 4]
    regret = read_table(browser_page, "regret")
    assert float(regret[-1][1].replace(",", "")) == pytest.approx(simulated.regret, abs=0.06)

    browser_page.problems = [
        problem for problem in browser_page.problems if not any(name in problem for name in REFUSED_CONNECTION)
    ]
    browser_page.assert_quiet(process.url)
    check_page(browser_page, "swarm")


def check_page(browser_page: BrowserPage, name: str) -> None:
    """Check the page for everyone's use and keep pictures of it: in light and dark, and on a phone."""
    page = browser_page.page
    toggle_details(browser_page, "true")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        assert browser_page.find_violations() == []
    toggle_details(browser_page, "false")
    for scheme in ("dark", "light"):
        page.emulate_media(color_scheme=scheme)
        browser_page.screenshot(f"{name}-{scheme}")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(500)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert browser_page.find_violations() == []
    browser_page.screenshot(f"{name}-phone")
    page.set_viewport_size({"width": 1360, "height": 900})


def toggle_details(browser_page: BrowserPage, opened: str) -> None:
    browser_page.page.evaluate(
        f"document.querySelectorAll('details').forEach((details) => {{ details.open = {opened}; }})"
    )
    browser_page.page.wait_for_timeout(500)


def write_journal(path: Path, agents: int, clusters: int) -> None:
    """Write a journal of very many agents."""
    store = open_store(f"sqlite:///{path}")
    began, random = time.time_ns() // 1_000_000 - 3_600_000, np.random.default_rng(0)
    with store.transaction():
        rows = [
            (
                number,
                began + number * 340,
                1 + number % agents,
                "determinant" if number % 3 else "auxiliary",
                9,
                20,
                8,
                1,
            )
            for number in range(1, agents + 501)
        ]
        store.connection.executemany("INSERT INTO journal VALUES (?, ?, ?, ?, ?, ?, ?, ?, 1)", rows)  # type: ignore[attr-defined]
        chosen = np.arange(1, agents + 1) if clusters == agents else random.geometric(0.15, agents).clip(max=clusters)
        moves = [(1, began, agent, int(cluster)) for agent, cluster in enumerate(chosen, 1)]
        store.connection.executemany("INSERT INTO move VALUES (?, ?, ?, ?)", moves)  # type: ignore[attr-defined]
    store.close()


def test_ten_thousand_agents_are_summarised(browser_page: BrowserPage, tmp_path: Path) -> None:
    write_journal(tmp_path / "store.db", 10_000, 25)
    process = ServerProcess(tmp_path, "sqlite:///store.db", dimension=6).start()
    try:
        process.connect().transport.close()
        log_in(browser_page, process.url)
        browser_page.wait_for("uploads", 10_500)
        assert browser_page.page.locator("#number-agents").inner_text().startswith("10,000")
        assert browser_page.page.locator("#clusters rect").count() == 25
        assert sum(int(row[1]) for row in read_table(browser_page, "clusters")) == 25
        assert sum(int(row[1].replace(",", "")) for row in read_table(browser_page, "ages")) == 10_000
        check_page(browser_page, "crowd")
        browser_page.assert_quiet(process.url)
    finally:
        process.stop()


@pytest.mark.parametrize("agents", [150, 300])
def test_agents_without_groups_are_one_population(agents: int, browser_page: BrowserPage, tmp_path: Path) -> None:
    """Few agents are drawn one by one, many are summarised."""
    write_journal(tmp_path / "store.db", agents, agents)
    process = ServerProcess(tmp_path, "sqlite:///store.db").start()
    try:
        log_in(browser_page, process.url)
        browser_page.wait_for("clusters", agents)
        words = browser_page.page.locator("#number-clusters").inner_text()
        assert words.split("\n") == ["None", "one population, no groups yet"]
        assert "One population, no groups yet" in browser_page.page.locator("#clusters-note").inner_text()
        browser_page.screenshot(f"no-groups-{agents}")
        assert browser_page.problems == []
    finally:
        process.stop()


@contextmanager
def run_live(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``fedcascade live``; at the end, Ctrl-C stops it without an error."""
    command = [sys.executable, "-m", "fedcascade", "live", "--no-browser", "--port", "0", *options]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_newcomer_is_told_what_happens_and_can_take_part(browser_page: BrowserPage, tmp_path: Path) -> None:
    with run_live(tmp_path, "--pace", "5000", "--rounds", "4000") as process:
        take_part(browser_page, process)


def test_a_visitor_changes_half_of_the_minds_and_agents_begin_anew(browser_page: BrowserPage, tmp_path: Path) -> None:
    sizes = ["--users", "8", "--clusters", "2", "--rounds", "100000", "--pace", "5000"]
    with run_live(tmp_path, "--drift", *sizes) as process:
        change_minds(browser_page, process)


def test_a_lecturer_sets_the_policies_and_starts_over(browser_page: BrowserPage, tmp_path: Path) -> None:
    with run_live(tmp_path, "--users", "6", "--clusters", "2", "--pace", "5000") as process:
        steer(browser_page, process)


def read_link(process: subprocess.Popen[str]) -> tuple[str, str]:
    """The address of a demo, and the link with its key."""
    assert process.stderr is not None
    link = next(hit[1] for line in process.stderr if (hit := re.search(r"dashboard: (\S+)", line)))
    return link.partition("/#key=")[0], link


def steer(browser_page: BrowserPage, process: subprocess.Popen[str]) -> None:
    url, link = read_link(process)
    page = browser_page.page
    page.goto(link)
    page.wait_for_selector("#error .line", state="attached", timeout=90_000)
    assert page.locator("#other-card").is_hidden()
    page.click("#settings summary")
    page.fill("input[name=clusters]", "5")
    page.fill("input[name=users]", "4")
    page.click("text=Start over")
    page.wait_for_selector("#restart-problem:has-text('clusters must be <= users (4), got 5')")
    page.fill("input[name=clusters]", "2")
    page.fill("input[name=users]", "8")
    page.fill("input[name=beta]", "0.5")
    page.select_option("select[name=policy]", "fedc3ucb-h")
    page.select_option("select[name=other]", "population")
    page.click("text=Start over")
    page.wait_for_selector("#runs:has-text('fedc3ucb-h')", timeout=90_000)  # the next process, at the same address
    page.wait_for_selector("#other-title:has-text('Clusters of population')", timeout=90_000)
    page.locator("#error .line").nth(1).wait_for(state="attached", timeout=90_000)
    page.locator("#regret .line").nth(3).wait_for(state="attached", timeout=90_000)
    page.wait_for_selector("#number-agents:has-text('8')", timeout=90_000)
    page.click("#pause")
    page.wait_for_selector("#pace-text:has-text('paused')")
    assert page.input_value("input[name=beta]") == "0.5"
    page.check("#truth")
    page.locator("#other-clusters .agent text", has_text=re.compile("^[AB]$")).nth(7).wait_for()
    letters = page.locator("#clusters .agent text").all_text_contents()
    assert sorted(letters) == ["A"] * 4 + ["B"] * 4
    for term in ("#clusters-title", "#number-refused", "#error-title"):
        words = page.locator(term).evaluate(
            "element => (element.closest('div').querySelector('[title]') ?? element).title"
        )
        assert len(words.split()) > 5, term
    page.click("#glossary summary")
    assert page.locator("#words dt").count() > 30
    browser_page.problems = [line for line in browser_page.problems if "Failed to load resource" not in line]  # restart
    check_page(browser_page, "two-policies")
    browser_page.assert_quiet(url)


def change_minds(browser_page: BrowserPage, process: subprocess.Popen[str]) -> None:
    url, link = read_link(process)
    page = browser_page.page
    page.goto(link)
    thousands = page.locator("#progress-text", has_text=re.compile(r"round \d+,\d{3} of"))
    thousands.wait_for(timeout=150_000)  # 125 rounds of each user, after all is compiled
    assert page.locator("#change-report").is_hidden()
    assert page.locator("#shop-link").is_hidden()
    page.click("#change-minds")
    page.wait_for_selector("#change-report:has-text('4 users changed')")
    page.wait_for_selector("#change-report[data-resets]:not([data-resets='0'])", timeout=90_000)
    page.locator("#pace").fill("0")  # nothing moves on while it is looked at
    page.wait_for_selector("#pace-text:has-text('paused')")
    assert [name for name, value in read_turnover(page).items() if value == 0] == ["Left"]
    assert page.locator("#regret .line").count() == 3
    assert page.locator("#change-report tbody tr").count() == 3
    title, bands = (page.locator(name).bounding_box() for name in ("#history-title", "#river"))
    assert title["y"] + title["height"] <= bands["y"]  # the shop's list of clicks once lent this card its style
    check_page(browser_page, "drift")
    browser_page.assert_quiet(url)


def read_turnover(page: Any) -> dict[str, int]:
    """Who came and left, by name."""
    names, values = (page.locator(f"#turnover {tag}").all_inner_texts() for tag in ("dt", "dd"))
    return {name: int(value) for name, value in zip(names, values, strict=True)}


def take_part(browser_page: BrowserPage, process: subprocess.Popen[str]) -> None:
    url, link = read_link(process)
    key = link.partition("#key=")[2]
    # On this machine, without any sign of a proxy, which may hide itself.
    assert [request_with(url, cookie) for cookie in ("", key, f"{key}x")] == [401, 200, 401]
    browser_page.page.goto(link)
    browser_page.page.wait_for_selector("#story li")
    assert browser_page.page.locator("#story li").count() == 3
    browser_page.page.wait_for_selector("#main[data-position]")
    pause_and_go_on(browser_page)
    browser_page.page.wait_for_selector("#progress-text:has-text('all 4,000')", timeout=60_000)
    settings = DemoSettings()
    environment, policy = build_environment(settings), build_policy(settings)
    simulated = simulate(environment, policy, rounds=4_000, oracle=TopK(length=2), engine="reference")
    browser_page.wait_for("uploads", len(simulated.ledger))
    assert browser_page.read_figure("clusters") == str(simulated.clusters)
    # a function to wait for would be a string that the page's content policy does not let anybody evaluate
    browser_page.page.locator("#regret .line").nth(2).wait_for(state="attached", timeout=90_000)
    assert browser_page.page.locator("#regret .line").count() == 3
    check_page(browser_page, "demo")

    be_a_user(browser_page)
    browser_page.page.set_viewport_size({"width": 1360, "height": 900})
    browser_page.page.click("text=Back to the dashboard")
    browser_page.page.wait_for_selector("#number-agents:has-text('41')")
    browser_page.assert_quiet(url)


LONG_TASK = 50.0  # milliseconds, as browsers count it


def pass_lists(page: Any, times: int) -> None:
    """Look at ten films, so many times."""
    for _ in range(times):
        page.locator("#films button:enabled").first.wait_for()
        page.click("#pass")
    page.locator("#films button:enabled").first.wait_for()


def be_a_user(browser_page: BrowserPage) -> None:
    """The visitor's agent is in the page: it works offline, after a reload, in two tabs, and is never long busy."""
    page = browser_page.page
    with record_tasks(page) as tasks:
        use_shop(browser_page)
    print(f"the longest of {len(tasks)} tasks of the shop: {max(tasks):.1f} ms of processor time")
    assert max(tasks) < LONG_TASK
    assert browser_page.find_violations() == []
    browser_page.screenshot("shop")
    page.set_viewport_size({"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    browser_page.screenshot("shop-phone")


def use_shop(browser_page: BrowserPage) -> None:
    page, context = browser_page.page, browser_page.page.context
    page.click("text=Join as a user")
    page.wait_for_selector("h1:has-text('You are one of the users')")
    first = page.locator(".film strong").all_inner_texts()
    assert len(first) == 10
    browser_page.requests.clear()
    pass_lists(page, 1)
    assert browser_page.requests == []  # ten films are fewer than an upload may hold
    pass_lists(page, 5)
    page.wait_for_selector("#place:not(:has-text('Nowhere yet'))")
    assert {address.partition("/v1/")[2] for address in browser_page.requests} == {"exchanges"}
    assert page.locator(".film strong").all_inner_texts() != first
    assert "20 films, 0 clicks, as one sum of 35 numbers" in page.inner_text("#sent-note")
    context.set_offline(True)
    pass_lists(page, 2)
    page.wait_for_selector("#trouble:has-text('1 upload not sent yet')")
    context.set_offline(False)
    page.wait_for_selector("#sent-note:has-text('Upload 4:')")
    browser_page.problems = [line for line in browser_page.problems if "ERR_INTERNET_DISCONNECTED" not in line]
    page.reload()
    page.wait_for_selector("#said:has-text('You clicked 0 of 8 lists')")
    tab = context.new_page()
    tab.goto(page.url)
    tab.wait_for_selector("#said:has-text('You clicked 0 of 8 lists')")
    tab.locator("#films button").nth(3).click()
    page.wait_for_selector("#kept-note:has-text('4 films')")
    tab.close()


def pause_and_go_on(browser_page: BrowserPage) -> None:
    """Pause, and go on before the pause has reached the server: the last word counts, whatever the network does."""
    held: list[Any] = []
    browser_page.page.route("**/live/demo", lambda route: held.append(route))
    browser_page.page.locator("#pace").fill("0")
    browser_page.page.wait_for_selector("#pace-text:has-text('paused')")
    browser_page.page.locator("#pace").fill("6")
    browser_page.page.wait_for_timeout(300)
    while held:  # the last first
        held.pop().continue_()
        browser_page.page.wait_for_timeout(300)
    browser_page.page.unroute("**/live/demo")


def request_with(url: str, session: str) -> int:
    """The status of the view for a caller on this machine with a cookie."""
    connection = http.client.HTTPConnection("127.0.0.1", int(url.rpartition(":")[2]), timeout=10)
    connection.request("GET", "/live/view", headers={"host": "localhost", "cookie": f"{COOKIE}={session}"})
    status = connection.getresponse().status
    connection.close()
    return status


def read_table(browser_page: BrowserPage, name: str) -> list[list[str]]:
    """The table behind a figure, as somebody reads it who cannot see the figure."""
    details = browser_page.page.locator(f"details:has(#{name}-table)")
    if details.get_attribute("open") is None:
        details.locator("summary").click()
    rows = browser_page.page.locator(f"#{name}-table tbody tr")
    rows.first.wait_for()
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]


def test_one_can_look_back_and_return(browser_page: BrowserPage, process: ServerProcess) -> None:
    run = SwarmThread(process)
    for event in run.may_pass.values():
        event.set()
    run.thread.join(60)
    log_in(browser_page, process.url)
    browser_page.wait_for("clusters", 3)
    total = int(browser_page.read_figure("uploads") or 0)
    slider = browser_page.page.locator("#when")
    slider.focus()
    for _ in range(7):  # tenths of the time
        browser_page.page.keyboard.press("PageDown")
    browser_page.page.wait_for_selector('#status[data-kind="past"]')
    past = int(browser_page.read_figure("uploads") or 0)
    assert 0 < past < total
    browser_page.page.click("#now")
    browser_page.wait_for("uploads", total)
    assert browser_page.read_figure("clusters") == "3"
    browser_page.assert_quiet(process.url)


def test_a_wrong_token_opens_nothing_and_leaving_closes(browser_page: BrowserPage, process: ServerProcess) -> None:
    browser_page.page.goto(process.url)
    browser_page.page.fill("#token", "not the token, but as long as one")
    browser_page.page.click("#login button")
    browser_page.page.wait_for_selector("#login-problem:has-text('not the operator')")
    assert browser_page.find_violations() == []
    log_in(browser_page, process.url)
    [cookie] = browser_page.page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    browser_page.page.click("#leave")
    browser_page.page.wait_for_selector("#login:not([hidden])")
