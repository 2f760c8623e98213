"""The command ``live``: everything at once, to look at."""

import signal
import tempfile
import threading
from pathlib import Path
from typing import Annotated, NoReturn

from fedcascade.checks import NONNEGATIVE, require_extra
from fedcascade.cli.options import Rounds, Whole, option
from fedcascade.cli.service import TOKEN, print_notice


def live(
    *,
    users: Annotated[Whole, option("How many simulated users, each with an agent.")] = 40,
    clusters: Annotated[Whole, option("How many tastes they have, at most 6.")] = 5,
    rounds: Rounds = 20_000,
    pace: Annotated[float, option("Rounds per second to begin with; the page can change it.")] = 100.0,
    seed: Annotated[Whole, option("Names the environment: users, films, clicks and luck all follow from it.")] = 1,
    store: Annotated[
        str | None, option("Where to keep everything. [default: a temporary folder, gone at the end]")
    ] = None,
    port: Annotated[Whole, option("Port to listen on, on this machine alone; 0 takes any that is free.")] = 8777,
    drift: Annotated[
        bool, option("Let half of the users change their minds when you press a button.", show_default=False)
    ] = False,
    no_browser: Annotated[bool, option("Do not open the page.", show_default=False)] = False,
) -> None:
    """Watch it at work: start a server and simulated users, and open the page that shows them.

    Example: fedcascade live
    """
    require_extra("server", "a server")
    from fedcascade.demo.catalogue import DIMENSION
    from fedcascade.demo.live import DRIFT_STORY, STORY, Demo, DemoSettings
    from fedcascade.demo.serve import serve_demo
    from fedcascade.service.server.serve import ServerSettings, require_empty_store
    from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits

    NONNEGATIVE.check("pace", pace)
    demo_settings = DemoSettings(users=users, clusters=clusters, rounds=rounds, seed=seed, drift=drift)
    demo_settings.build_environment()  # refuse what cannot be before anything starts
    signal.signal(signal.SIGTERM, _end)  # else the signal would end the process, and leave its folder behind
    with tempfile.TemporaryDirectory(prefix="fedcascade-live-") as name:
        store_url = store or f"sqlite:///{name}/live.db"
        require_empty_store(store_url)
        settings = ServerSettings(
            store=store_url,
            policy=demo_settings.build_policy(),
            dimension=DIMENSION,
            port=port,
            operator_token=Path(name) / "operator.token" if store is None else TOKEN,
            limits=Limits(rate=1e6, burst=1e6),
            bounds=FOR_SIMULATIONS,
        )
        for sentence in DRIFT_STORY if drift else STORY:
            print_notice(sentence)
        try:
            demo = Demo(demo_settings, pace=pace, token=settings.operator_token)
            serve_demo(settings, lambda line: _show_line(line, no_browser, has_shop=not drift), demo)
        except KeyboardInterrupt:
            print_notice("ended")


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _show_line(line: str, no_browser: bool, *, has_shop: bool) -> None:
    """Print a line; the one with the address also opens the page."""
    print_notice(line)
    _, separator, url = line.rpartition(" on http")
    if separator:
        shop = f"   the shop window: http{url}/shop" if has_shop else ""
        print_notice(f"the page: http{url}/{shop}   Ctrl-C ends it all")
    if separator and not no_browser:
        threading.Timer(1.0, _open_browser, [f"http{url}/"]).start()


def _open_browser(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        print_notice(f"no browser was found: open {url} yourself")
