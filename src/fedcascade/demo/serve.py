"""A demo's server: the whole service, with simulated users and a shop window beside it."""

import asyncio
from collections.abc import Callable

from fedcascade.demo.live import Demo
from fedcascade.demo.routes import ROUTES
from fedcascade.service.dashboard.dashboard import DemoView
from fedcascade.service.serve import serve
from fedcascade.service.server.app import Extension
from fedcascade.service.server.serve import ServerSettings
from fedcascade.service.server.service import Service


def serve_demo(settings: ServerSettings, announce: Callable[[str], None], demo: Demo) -> None:
    """Run a server, its dashboard and a demo until it is told to stop; ``announce`` gets each line to print."""

    def extend(service: Service) -> list[Extension]:
        def read_clusters() -> dict[int, int]:
            return service.writer.submit(lambda store, _: store.read_clusters(store.find_head())).result()

        return [
            Extension(
                routes=ROUTES,
                state={"demo": demo},
                on_listening=lambda url: demo.start(url, read_clusters),
                on_shutdown=lambda: asyncio.to_thread(demo.stop),
            )
        ]

    view = DemoView(describe_progress=demo.describe_progress, introduce=demo.introduce)
    serve(settings, announce, demo=view, extend=extend)
