"""A server with its dashboard and further extensions."""

from collections.abc import Callable, Mapping, Sequence

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
    tenants: Mapping[str, ServerSettings] = {},
) -> None:
    """Run a server with its dashboard until a signal; ``announce`` gets each line for the operator.

    The dashboard shows ``demo``, if any. ``extend`` returns further extensions, which stop before the dashboard.
    With ``tenants`` the server hosts those.
    """
    run_server(settings, announce, lambda service: [*extend(service), build_dashboard(service, demo)], tenants)
