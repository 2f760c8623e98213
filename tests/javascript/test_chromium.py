"""The agent in a real browser: equal to the Python one, quick, and whole after all that happens to tabs and servers."""

import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcascade.service.protocol.errors import Refused

from ..service.helpers import ServerProcess
from .conftest import PACKAGE
from .web import D, WebSite, make_item, serve_folder, wait_for

MOST_BYTES = 24_459  # of the agent, with the head of the response


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    with serve_folder(PACKAGE) as address:
        yield address


@pytest.fixture(scope="module")
def server(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    options = "--policy", "population", "--allow-origin", origin
    process = ServerProcess(folder, "sqlite:///store.db", *options, dimension=D).start()
    process.connect().transport.close()
    yield process
    process.stop()


@pytest.fixture
def site(browser: Any, origin: str, server: ServerProcess) -> Iterator[WebSite]:
    site = WebSite(browser, origin, server)
    yield site
    site.close()


def assert_held(site: WebSite, agent: int, rounds: int) -> None:
    """The server holds exactly the rounds from 0 on, to the bit."""
    held = site.read_held(agent)
    assert held.rounds == rounds
    assert np.array_equal(held.moment, sum((make_item(number) for number in range(rounds)), np.zeros(D)))


def test_the_agent_agrees_with_every_vector_in_chromium(browser: Any, vectors: Path, origin: str) -> None:
    shutil.copytree(vectors, PACKAGE / "vectors", dirs_exist_ok=True)
    page = browser.new_page()
    page.goto(origin)
    cases, differences = page.evaluate("""async () => {
        const { CHECKS, checkFile } = await import("/test/conformance.js");
        const read = async (kind) => (await fetch(`/vectors/${kind}.json`)).json();
        const results = await Promise.all(Object.keys(CHECKS).map(async (kind) => checkFile(await read(kind))));
        return [results.reduce((sum, { cases }) => sum + cases, 0), results.flatMap(({ differences }) => differences)];
    }""")
    page.close()
    assert differences == []
    assert cases >= 500


def test_indexed_db_holds_the_contract_of_stores(browser: Any, origin: str) -> None:
    page = browser.new_page()
    page.goto(origin)
    broken = page.evaluate("""async () => {
        const { checkStore } = await import("/test/store-contract.js");
        const { openBrowserStore } = await import("/src/store.js");
        return checkStore(() => openBrowserStore("contract"));
    }""")
    page.close()
    assert broken == []


def test_a_page_loads_one_small_file_and_nothing_at_the_second_view(site: WebSite) -> None:
    """A browser revalidates the plain name without a body, and asks for a name with a digest once."""
    path = site.fetch_agent_path()
    for name, second in (("/agent/index.js", (1, 304)), (path, (0, 0))):
        tab = site.open_tab()
        views = [load_agent(tab, site.server.url + name), load_agent(tab, site.server.url + name)]
        tab.close()
        for view, (requests, received, status) in zip(("first", "second"), views, strict=True):
            print(f"{name.partition('-')[0]}, {view} view: {requests} requests, {received} bytes, status {status}")
        assert views[0][0] == 1
        assert views[0][1] < MOST_BYTES
        assert (views[1][0], views[1][2]) == second
        assert views[1][1] < 1_000


def load_agent(tab: Any, address: str) -> tuple[int, int, int]:
    """Load the page and the agent; return how many requests reached the server, bytes with heads, and a status."""
    session = tab.context.new_cdp_session(tab)
    received, statuses = dict[str, int](), dict[str, int]()
    wanted = set[str]()
    session.on(
        "Network.requestWillBeSent",
        lambda event: wanted.add(event["requestId"]) if "/agent/" in event["request"]["url"] else None,
    )
    session.on(
        "Network.responseReceivedExtraInfo", lambda event: statuses.__setitem__(event["requestId"], event["statusCode"])
    )
    session.on(
        "Network.loadingFinished",
        lambda event: received.__setitem__(event["requestId"], int(event["encodedDataLength"])),
    )
    session.send("Network.enable")
    tab.reload()
    assert tab.evaluate("(address) => import(address).then((agent) => typeof agent.connect)", address) == "function"
    tab.wait_for_timeout(100)
    asked = [each for each in wanted if each in statuses]
    session.detach()
    return len(asked), sum(received.get(each, 0) for each in wanted), max((statuses[each] for each in asked), default=0)


@pytest.mark.parametrize(
    ("broken", "line"),
    [
        ("delete Navigator.prototype.locks", "has no locks between tabs"),
        ("delete Crypto.prototype.subtle", "has no WebCrypto"),
        ("SubtleCrypto.prototype.generateKey = () => Promise.reject(new Error('unsupported'))", "has no Ed25519"),
    ],
)
def test_a_browser_that_cannot_run_an_agent_shows_the_page_s_order(site: WebSite, broken: str, line: str) -> None:
    tab = site.open_tab(broken)
    assert site.enrol(tab) is None
    shown = tab.evaluate("agent.recommend([[0, 0, 1], [0, 1, 0], [1, 0, 0]], { k: 2 }).items")
    assert shown == [0, 1]
    tab.evaluate("play(0, 5)")
    assert tab.evaluate("agent.flush(1)")
    assert line in tab.evaluate("agent.trouble")
    assert tab.evaluate("agent.isFallback")


def test_recommending_takes_less_than_a_millisecond(browser: Any, origin: str) -> None:
    page = browser.new_page()
    page.goto(origin)
    median = page.evaluate("""async () => {
        const [{ SavedAgent }, { beginSaved }, { begin }, { openBrowserStore }] =
            await Promise.all(["saved-agent", "ledger", "agent", "store"].map((name) => import(`/src/${name}.js`)));
        const constants = { alpha_c: 5, lambda_: 4, beta: 2, confidence: "constant" };
        const bounds = { longest_list: 50, min_observations: 40, terms_id: "t" };
        const terms = { policy: "population", constants, dimension: 20, ...bounds };
        const state = beginSaved({ agent: 1, terms, credential: null }, begin(20));
        const store = await openBrowserStore("speed");
        await store.update([], () => ({ puts: [["state", state]] }));
        const agent = new SavedAgent(store, state), times = [];
        const items = Float32Array.from({ length: 4000 }, () => (Math.random() - 0.5) / 3);
        for (let turn = 0; turn < 200; turn++) {
            const begun = performance.now(), shown = agent.recommend(items, { k: 10 });
            times.push(performance.now() - begun);
            await agent.feedback(shown, { clicked: turn % 10 });
        }
        return times.sort((a, b) => a - b)[100];
    }""")
    page.close()
    print(f"recommend: median {1000 * median:.0f} us")
    assert median < 1.0


def test_what_a_page_of_another_origin_learns_reaches_the_server(site: WebSite) -> None:
    tab = site.open_tab()
    agent = site.enrol(tab)
    tab.evaluate("play(0, 12)")
    assert tab.evaluate("agent.flush(20)")
    assert_held(site, agent, 10)
    assert tab.evaluate("agent.buffered") == 2
    assert tab.evaluate("agent.trouble") is None
    tab.evaluate("agent.leave()")
    with pytest.raises(Refused, match="there is no agent"):
        site.read_held(agent)


def crash(tab: Any) -> None:
    """Kill the process of a tab, and wait until it is dead."""
    session = tab.context.new_cdp_session(tab)
    with tab.expect_event("crash"), pytest.raises(Exception, match=r"crashed|closed|Timeout"):
        session.send("Page.crash", timeout=200)  # a dead tab gives no answer
    tab.close()


def kill_tabs(site: WebSite, kills: int, seed: int) -> None:
    luck, learned = random.Random(seed), list[int]()
    tab, agent, total = site.open_tab(), 0, 0
    agent = site.enrol(tab)
    for _ in range(kills):
        learned.clear()
        tab.expose_function("learned", lambda number: learned.append(number))
        tab.evaluate("(first) => { play(first, 1000); }", total)
        tab.wait_for_timeout(luck.uniform(0.0, 60.0))  # the moment is to be random: nothing is waited for
        crash(tab)
        tab = site.open_tab()
        assert site.connect(tab) == agent
        stored = tab.evaluate("countRounds()")
        acknowledged = total + len(learned)
        assert acknowledged <= stored <= acknowledged + 1  # the round under way may have been stored
        total = stored
    tab.evaluate("([first, count]) => play(first, count)", [total, 5 + (-total) % 5])
    assert tab.evaluate("agent.flush(60)")
    total = tab.evaluate("countRounds()")
    buffered = tab.evaluate("agent.state.buffer.rounds")
    assert_held(site, agent, total - buffered)


def test_a_killed_tab_loses_no_click_and_doubles_none(site: WebSite) -> None:
    kill_tabs(site, 4, seed=1)


@pytest.mark.long
def test_fifty_killed_tabs_lose_no_click_and_double_none(site: WebSite) -> None:
    kill_tabs(site, 50, seed=2)


def test_two_tabs_are_one_agent(site: WebSite) -> None:
    first, second = site.open_tab(), site.open_tab()
    agent = site.enrol(first)
    assert site.connect(second) == agent
    for tab in (first, second):
        tab.evaluate("() => { window.done = play(0, 20).then(() => true); }")
    assert first.evaluate("done")
    assert second.evaluate("done")
    assert second.evaluate("agent.flush(20)")
    assert first.evaluate("countRounds()") == second.evaluate("countRounds()") == 40
    assert site.read_held(agent).rounds + second.evaluate("agent.state.buffer.rounds") == 40
    first.close()  # the tab that spoke: the other goes on
    second.evaluate("play(40, 10)")
    assert second.evaluate("agent.flush(20)")
    assert site.read_held(agent).rounds + second.evaluate("agent.state.buffer.rounds") == 50


def test_an_agent_learns_offline_and_sends_when_the_network_is_back(site: WebSite) -> None:
    tab = site.open_tab()
    agent = site.enrol(tab)
    site.context.set_offline(True)
    tab.evaluate("play(0, 15)")
    wait_for(tab, "agent.trouble")
    assert "cannot be reached" in tab.evaluate("agent.trouble")
    assert site.read_held(agent).rounds == 0
    site.context.set_offline(False)
    assert tab.evaluate("agent.flush(20)")
    assert_held(site, agent, 15)


def test_an_agent_that_could_not_leave_goes_on(site: WebSite) -> None:
    tab = site.open_tab()
    agent = site.enrol(tab)
    site.context.set_offline(True)
    with pytest.raises(Exception, match="cannot be reached"):
        tab.evaluate("agent.leave()")
    tab.evaluate("play(0, 5)")
    site.context.set_offline(False)
    assert tab.evaluate("agent.flush(20)")
    assert_held(site, agent, 5)


@pytest.mark.parametrize("how", ["revoked", "forgotten"])
def test_an_agent_that_the_server_sent_away_comes_back_with_a_new_token(site: WebSite, how: str) -> None:
    """Two tabs: the first one speaks and has no token, the second one brings it. Nothing is counted twice."""
    first, second = site.open_tab(), site.open_tab()
    before = site.enrol(first)
    first.evaluate("play(0, 10)")
    assert first.evaluate("agent.flush(20)")
    (site.operator.revoke if how == "revoked" else site.operator.forget)(before)
    with pytest.raises(Exception, match="revoked" if how == "revoked" else "no enrolled agent"):
        first.evaluate("agent.leave()")
    first.evaluate("play(10, 5)")
    wait_for(first, "(agent.trouble ?? '').includes('for an enrolment token')")
    assert site.enrol(second, pauses=[300, 300]) == before
    assert second.evaluate("agent.flush(20)")
    agent = second.evaluate("agent.id")
    assert agent == first.evaluate("agent.refresh().then(() => agent.id)") != before
    first.close()  # the tab that enrolled: the other one signs with the key that it has made
    second.evaluate("play(15, 5)")
    assert second.evaluate("agent.flush(20)")
    assert second.evaluate("[agent.lost, agent.unsent, agent.buffered]") == [0, 0, 0]
    if how == "forgotten":
        assert_held(site, agent, 20)
    else:
        assert (site.read_held(before).rounds, site.read_held(agent).rounds) == (10, 10)


def test_whom_the_server_sent_away_can_erase_what_the_browser_keeps(site: WebSite) -> None:
    first, second = site.open_tab(), site.open_tab()
    agent = site.enrol(first)
    site.connect(second)
    site.operator.forget(agent)
    first.evaluate("agent.erase()")
    wait_for(second, "agent.isClosed")
    with pytest.raises(Exception, match="this agent is closed: connect again"):
        second.evaluate("play(0, 1)")
    with pytest.raises(Exception, match="for an enrolment token"):
        site.connect(first)


def test_a_tab_that_waits_makes_the_one_that_speaks_try_at_once(site: WebSite) -> None:
    first, second = site.open_tab(), site.open_tab()
    agent = site.enrol(first, pauses=[300, 300])
    site.connect(second)
    site.context.set_offline(True)
    first.evaluate("play(0, 5)")
    wait_for(first, "agent.trouble")
    site.context.set_offline(False)
    assert second.evaluate("agent.flush(20)")
    assert_held(site, agent, 5)


def test_flush_keeps_the_pause_that_the_server_asked_for(site: WebSite) -> None:
    tab, requests = site.open_tab(), list[str]()
    site.enrol(tab)
    refusal = '{"reason": "too-many-requests", "detail": "later"}'
    headers = {"retry-after": "60", "access-control-allow-origin": "*", "access-control-expose-headers": "retry-after"}

    def refuse(route: Any) -> None:
        requests.append(route.request.url)
        route.fulfill(status=429, body=refusal, headers=headers)

    tab.route("**/v1/exchanges", refuse)
    tab.evaluate("play(0, 5)")
    wait_for(tab, "agent.trouble === 'later'")
    assert not tab.evaluate("agent.flush(0.3)")
    assert len(requests) == 1


def test_lists_of_all_tabs_wait_for_feedback_also_after_a_reload(site: WebSite) -> None:
    first, second = site.open_tab(), site.open_tab()
    site.enrol(first)
    site.connect(second)
    show = "agent.recommend([makeItem(1), makeItem(2)], { k: 1 }).impression"
    names = [first.evaluate(show), second.evaluate("agent.openLists().then(() => agent.refresh())")]
    names[1] = second.evaluate(show)
    second.evaluate("agent.openLists()")
    first.close()
    second.reload()
    site.connect(second)
    assert second.evaluate("agent.openLists().then((lists) => lists.map(({ impression }) => impression))") == names
    second.evaluate("(name) => agent.feedback(name, { clicked: 0 })", names[0])
    assert second.evaluate("agent.openLists().then((lists) => lists.map(({ impression }) => impression))") == names[1:]


def test_closing_a_page_reveals_nothing_below_the_floor(site: WebSite) -> None:
    tab = site.open_tab()
    agent = site.enrol(tab)
    tab.evaluate("play(0, 4)")  # one fewer than the floor
    requests: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    hide = "Object.defineProperty(document, 'visibilityState', { value: 'hidden' }); "
    tab.evaluate(f"() => {{ {hide} document.dispatchEvent(new Event('visibilitychange')); }}")
    tab.close(run_before_unload=True)
    assert requests == []
    assert site.read_held(agent).rounds == 0


def test_a_full_browser_works_in_memory_and_says_so(site: WebSite) -> None:
    tab = site.open_tab()
    quota = {"origin": f"{site.origin}/", "quotaSize": 1}
    site.context.new_cdp_session(tab).send("Storage.overrideQuotaForOrigin", quota)
    agent = site.enrol(tab)
    tab.evaluate("play(0, 10)")
    assert "it stays in memory" in tab.evaluate("agent.trouble")
    assert tab.evaluate("agent.flush(20)")
    assert_held(site, agent, 10)


def test_a_browser_that_stores_nothing_works_in_memory_and_says_so(site: WebSite) -> None:
    tab = site.open_tab("indexedDB.open = () => { throw new DOMException('denied', 'SecurityError'); };")
    agent = site.enrol(tab)
    tab.evaluate("play(0, 5)")
    assert tab.evaluate("agent.flush(20)")
    assert "the browser cannot store this agent (denied)" in tab.evaluate("agent.trouble")
    assert_held(site, agent, 5)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_clock_that_is_wrong_by_an_hour_is_corrected(site: WebSite, hours: int) -> None:
    tab = site.open_tab(f"const real = Date.now; Date.now = () => real() + {hours * 3_600_000};")
    agent = site.enrol(tab)
    tab.evaluate("play(0, 10)")
    assert tab.evaluate("agent.flush(20)")
    assert_held(site, agent, 10)


def test_no_script_can_read_the_key(site: WebSite) -> None:
    tab = site.open_tab()
    site.enrol(tab)
    outcome = tab.evaluate("""() => agent.store.update(["key"], ([key]) => ({ result: key }))
        .then((key) => crypto.subtle.exportKey("pkcs8", key.privateKey)).then(() => "read", ({ name }) => name)""")
    assert outcome == "InvalidAccessError"


@pytest.mark.parametrize("is_known", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_server_that_was_restored_from_a_backup_gets_what_it_lost(
    browser: Any, origin: str, tmp_path: Path, is_known: bool
) -> None:
    options = "--policy", "population", "--allow-origin", origin
    server = ServerProcess(tmp_path, "sqlite:///store.db", *options, dimension=D).start()
    server.connect().transport.close()
    site = WebSite(browser, origin, server)
    try:
        tab = site.open_tab()
        agent = site.enrol(tab) if is_known else 0
        server.stop()
        shutil.copy(tmp_path / "store.db", tmp_path / "backup.db")
        server.start()
        server.connect().transport.close()
        agent = agent or site.enrol(tab)
        tab.evaluate("play(0, 10)")
        assert tab.evaluate("agent.flush(20)")
        assert_held(site, agent, 10)
        server.stop()
        for file in tmp_path.glob("store.db*"):
            file.unlink()
        shutil.copy(tmp_path / "backup.db", tmp_path / "store.db")
        server.start()
        server.connect().transport.close()
        tab.evaluate("play(10, 5)")
        assert tab.evaluate("agent.flush(60)")
        assert_held(site, agent, 15)
    finally:
        site.close()
        server.stop()


@pytest.mark.long
def test_an_agent_follows_a_server_that_was_restarted_with_other_terms(
    browser: Any, origin: str, tmp_path: Path
) -> None:
    """An upload that is too small by now goes back into the buffer, and another policy decides from then on."""
    options = "--policy", "population", "--allow-origin", origin
    server = ServerProcess(tmp_path, "sqlite:///store.db", *options, dimension=D).start()
    server.connect().transport.close()
    site = WebSite(browser, origin, server)
    try:
        tab = site.open_tab()
        agent = site.enrol(tab)
        tab.evaluate("play(0, 5)")
        assert tab.evaluate("agent.flush(20)")
        server.stop()
        tab.evaluate("play(5, 5)")
        wait_for(tab, "(agent.trouble ?? '').includes('cannot be reached')")
        server.options = "--policy", "fedlinucb", "--take-over", "--allow-origin", origin
        server.min_observations = 8
        server.start()
        server.connect().transport.close()
        wait_for(tab, "agent.floor === 8 && agent.buffered === 5 && agent.unsent === 0")
        tab.evaluate("play(10, 5)")
        assert tab.evaluate("agent.flush(60)")
        assert tab.evaluate("[agent.state.enrolment.terms.policy, agent.lost]") == ["fedlinucb", 0]
        assert_held(site, agent, 13)
        assert tab.evaluate("agent.state.buffer.rounds") == 2
    finally:
        site.close()
        server.stop()
