"""The command ``live``: a server with simulated users and a dashboard."""

import os
import signal
import sys
import tempfile
import threading
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from fedcascade.cli.options import Whole, option, take_options
from fedcascade.cli.service import TOKEN, print_notice
from fedcascade.demo import options
from fedcascade.service.server.settings import ServerOptions

KEY_VARIABLE = "FEDCASCADE_DEMO_KEY"  # for the process that takes over, so that open pages go on

if TYPE_CHECKING:
    from fedcascade.demo.live import Demo
    from fedcascade.demo.options import DemoSettings
else:
    DemoSettings = take_options(options.DemoSettings, variables="FEDCASCADE_LIVE_")


def live(
    *,
    store: Annotated[
        str | None, option("Where to store everything. [default: a temporary folder, deleted at the end]")
    ] = None,
    port: Annotated[
        Whole, option("Port to listen on, on this machine alone; 0 takes any free port.")
    ] = ServerOptions.port,
    no_browser: Annotated[bool, option("Do not open the page.", show_default=False)] = False,
    demo_settings: DemoSettings = DemoSettings(),  # noqa: B008 (frozen)
) -> None:
    """Start a server with simulated users, and open its dashboard."""
    from fedcascade.demo.live import DRIFT_STORY, STORY, Demo, build_server_settings
    from fedcascade.demo.serve import serve_demo
    from fedcascade.service.protocol.auth import create_token
    from fedcascade.service.server.serve import require_empty_store

    # Else the signal would leave the temporary folder behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="fedcascade-live-") as name:
        store_url = store or f"sqlite:///{name}/live.db"
        token = Path(name) / "operator.token" if store is None else TOKEN
        settings = build_server_settings(demo_settings, store=store_url, port=port, operator_token=token)
        require_empty_store(store_url)
        key = os.environ.pop(KEY_VARIABLE, None) or create_token()
        demo = Demo(demo_settings, token=token, key=key, can_restart=store is None)
        for sentence in DRIFT_STORY if demo_settings.drift else STORY:
            print_notice(sentence)
        try:
            serve_demo(settings, lambda line: _show_line(line, no_browser, demo), demo)
        except KeyboardInterrupt:
            print_notice("ended" if demo.next is None else "starting over")
    if demo.next is not None:
        _start_over(demo)


def _start_over(demo: "Demo") -> NoReturn:
    """Replace this process by one with the settings that the page asked for, at the same address."""
    flags = ["--no-browser", "--port", demo.url.rpartition(":")[2]]
    for name, value in asdict(demo.next).items() if demo.next is not None else ():
        flag = f"--{name.replace('_', '-')}"
        flags += [flag] * value if isinstance(value, bool) else [flag, str(value)] if value is not None else []
    os.environ[KEY_VARIABLE] = demo.key
    os.execv(sys.executable, [sys.executable, "-m", "fedcascade", "live", *flags])


def _show_line(line: str, no_browser: bool, demo: "Demo") -> None:
    """Print a line of the server; the line with its address also opens the page."""
    print_notice(line)
    _, separator, url = line.rpartition(" on http")
    if separator:
        shop = "" if demo.settings.drift else f"shop: http{url}/shop   "
        page = f"http{url}/#key={demo.key}"
        print_notice(f"dashboard: {page}   {shop}Ctrl-C stops everything")
        if not no_browser:
            threading.Timer(1.0, _open_browser, [page]).start()


def _open_browser(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        print_notice(f"no browser found: open {url} yourself")
