"""The command ``live``: a server with simulated users and a dashboard."""

import signal
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from fedcascade.checks import require_extra
from fedcascade.cli.options import Whole, option, take_options
from fedcascade.cli.service import TOKEN, print_notice
from fedcascade.demo import options

if TYPE_CHECKING:
    from fedcascade.demo.options import DemoSettings
else:
    DemoSettings = take_options(options.DemoSettings, variables="FEDCASCADE_LIVE_")


def live(
    *,
    store: Annotated[
        str | None, option("Where to store everything. [default: a temporary folder, deleted at the end]")
    ] = None,
    port: Annotated[Whole, option("Port to listen on, on this machine alone; 0 takes any free port.")] = 8777,
    no_browser: Annotated[bool, option("Do not open the page.", show_default=False)] = False,
    demo_settings: DemoSettings = DemoSettings(),  # noqa: B008 (frozen)
) -> None:
    """Start a server with simulated users, and open its dashboard."""
    require_extra("server", "a server")
    from fedcascade.demo.catalogue import DIMENSION
    from fedcascade.demo.live import DRIFT_STORY, STORY, Demo, build_environment, build_policy
    from fedcascade.demo.serve import serve_demo
    from fedcascade.service.server.serve import ServerSettings, require_empty_store
    from fedcascade.service.server.settings import FOR_SIMULATIONS, Limits

    build_environment(demo_settings)  # refuse bad settings before anything starts
    signal.signal(signal.SIGTERM, _end)  # else the signal would leave the temporary folder behind
    with tempfile.TemporaryDirectory(prefix="fedcascade-live-") as name:
        store_url = store or f"sqlite:///{name}/live.db"
        require_empty_store(store_url)
        settings = ServerSettings(
            store=store_url,
            policy=build_policy(demo_settings),
            dimension=DIMENSION,
            port=port,
            operator_token=Path(name) / "operator.token" if store is None else TOKEN,
            limits=Limits(rate=1e6, burst=1e6),
            bounds=FOR_SIMULATIONS,
        )
        for sentence in DRIFT_STORY if demo_settings.drift else STORY:
            print_notice(sentence)
        try:
            demo = Demo(demo_settings, token=settings.operator_token)
            serve_demo(settings, lambda line: _show_line(line, no_browser, has_shop=not demo_settings.drift), demo)
        except KeyboardInterrupt:
            print_notice("ended")


def _end(*_: object) -> NoReturn:
    raise SystemExit(128 + signal.SIGTERM)


def _show_line(line: str, no_browser: bool, *, has_shop: bool) -> None:
    """Print a line of the server; the line with its address also opens the page."""
    print_notice(line)
    _, separator, url = line.rpartition(" on http")
    if separator:
        shop = f"   shop: http{url}/shop" if has_shop else ""
        print_notice(f"dashboard: http{url}/{shop}   Ctrl-C stops everything")
    if separator and not no_browser:
        threading.Timer(1.0, _open_browser, [f"http{url}/"]).start()


def _open_browser(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        print_notice(f"no browser found: open {url} yourself")
