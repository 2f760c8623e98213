"""A web site of its own origin, whose page holds agents of a server elsewhere; and the tabs that look at it."""

import functools
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcascade.learning.statistics import Statistics
from fedcascade.service.agent.client import OperatorClient, decode_reply
from fedcascade.service.agent.transport import HttpTransport
from fedcascade.service.protocol import wire

from ..service.helpers import TOKEN, ServerProcess

D = 3
PAGE = b"<!doctype html><title>a page</title><link rel=icon href=data:,>"
# What the page does, as JavaScript: rounds with one item each, whose features name the round.
SCRIPT = """
window.makeItem = (n) => [(n % 1024) / 2048, (7 * n % 1024) / 2048, 0.25];
window.connectAgent = async (options) => {
  const { connect, always } = await import(options.url + "/agent/index.js");
  const policy = (own) => ({ ...own, trigger: always });
  window.agent = await connect({ minObservations: 5, policy, pauses: [0.02, 1], ...options });
  return window.agent.id;
};
window.play = async (first, count) => {
  for (let n = first; n < first + count; n++) {
    await window.agent.feedback(window.agent.recommend([window.makeItem(n)], { k: 1 }), { clicked: 0 });
    window.learned?.(n);
  }
};
window.countRounds = async () => {
  await window.agent.refresh();
  const { confirmed, outbox, buffer } = window.agent.state;
  const all = [confirmed, buffer, ...outbox.map(({ statistics }) => statistics)];
  return all.reduce((sum, { rounds }) => sum + rounds, 0);
};
"""


def make_item(number: int) -> NDArray[np.float64]:
    """The features of the item of that round."""
    return np.array([(number % 1024) / 2048, (7 * number % 1024) / 2048, 0.25])


class _Handler(http.server.SimpleHTTPRequestHandler):
    extensions_map = {".js": "text/javascript", ".json": "application/json"}  # noqa: RUF012 (the library's form)

    def do_GET(self) -> None:
        if self.path != "/":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(PAGE)))
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """A web site with an empty page and the files of a folder; yields its origin."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class WebSite:
    """A site, a server that allows it, and a profile of a browser."""

    def __init__(self, browser: Any, origin: str, server: ServerProcess) -> None:
        self.origin, self.server = origin, server
        self.context = browser.new_context()
        self._transport = HttpTransport(server.url)
        self.operator = OperatorClient(self._transport, TOKEN)

    def open_tab(self, *init_scripts: str) -> Any:
        """A new tab of the profile, with what the page can do."""
        page = self.context.new_page()
        for script in (SCRIPT, *init_scripts):
            page.add_init_script(script)
        page.goto(self.origin)
        return page

    def connect(self, page: Any, **options: Any) -> int:
        agent: int = page.evaluate("(options) => connectAgent(options)", {"url": self.server.url, **options})
        return agent

    def enrol(self, page: Any, **options: Any) -> int:
        return self.connect(page, token=self.operator.create_tokens()[0], **options)

    def read_held(self, agent: int) -> Statistics:
        """What the server holds of an agent."""
        reply = self._transport.send("GET", f"/v1/agents/{agent}", b"", {"authorization": f"Bearer {TOKEN}"})
        return decode_reply(reply, wire.Standing).unpack_held(D)

    def fetch_agent_path(self) -> str:
        """The path of the agent that a browser caches for good."""
        return "/agent/" + self._transport.send("GET", "/agent/index.js", b"", {}).headers["content-location"]

    def close(self) -> None:
        self._transport.close()
        self.context.close()


def wait_for(page: Any, condition: str, seconds: float = 20.0) -> None:
    """Wait until an expression of the page is true."""
    page.wait_for_function(condition, timeout=1000 * seconds)
