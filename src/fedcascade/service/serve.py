"""The whole service: a server with its dashboard, and with whatever else the caller adds."""

from collections.abc import Callable, Sequence

from fedcascade.service.dashboard.feed import DemoView
from fedcascade.service.dashboard.routes import build_dashboard
from fedcascade.service.server.app import Extension
from fedcascade.service.server.serve import ServerSettings, run_server
from fedcascade.service.server.service import Service


def serve(
    settings: ServerSettings,
    announce: Callable[[str], None],
    *,
    demo: DemoView | None = None,
    extend: Callable[[Service], Sequence[Extension]] = lambda _: (),
) -> None:
    """Run a server with its dashboard until it is told to stop; ``announce`` gets each line for the operator.

    ``demo`` is what the dashboard shows of a demo beside the server. ``extend`` makes further extensions; they are
    stopped before the dashboard is.
    """
    run_server(settings, announce, lambda service: [*extend(service), build_dashboard(service, demo)])
