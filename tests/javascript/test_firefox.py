"""The agent in Firefox: a page of another origin enrols, learns and is answered; after a reload it is the same agent.

Playwright drives a Firefox of its own build only, so the page does all by itself and reports to its site.
"""

import http.server
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ..service.helpers import ServerProcess
from .web import SCRIPT, D

PAGE = """<!doctype html><title>a page</title><link rel=icon href=data:,><script type="module">
%s
const report = (body) => fetch("/report", { method: "POST", body: JSON.stringify(body) });
try {
  const { url, token } = await (await fetch("/options")).json(), isFirst = !sessionStorage.getItem("seen");
  const id = await connectAgent(isFirst ? { url, token } : { url });
  await play(isFirst ? 0 : 5, 5);
  const done = await agent.flush(60), { trouble } = agent;
  await report({ id, done, rounds: agent.state.confirmed.rounds, trouble, browser: navigator.userAgent });
  sessionStorage.setItem("seen", "1");
  if (isFirst) location.reload();
} catch (error) {
  await report({ error: `${error.name}: ${error.message}` });
}
</script>"""


@contextmanager
def serve_page(options: dict[str, str], reports: "queue.Queue[dict[str, Any]]") -> Iterator[str]:
    """Serve the page; yield its origin."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, body: bytes, media: str) -> None:
            self.send_response(200)
            self.send_header("content-type", media)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            options_wanted = self.path == "/options"
            body = json.dumps(options) if options_wanted else PAGE % SCRIPT
            self.answer(body.encode(), "application/json" if options_wanted else "text/html")

        def do_POST(self) -> None:
            reports.put(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            self.answer(b"{}", "application/json")

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def browse(firefox: str, profile: Path, origin: str, reports: "queue.Queue[dict[str, Any]]") -> list[dict[str, Any]]:
    """Open the page in a new profile; return its two reports."""
    profile.mkdir()
    command = [firefox, "--headless", "--no-remote", "--profile", str(profile), origin]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as browser:
        try:
            return [reports.get(timeout=90), reports.get(timeout=60)]
        finally:
            browser.terminate()


@pytest.mark.timeout(180)
def test_an_agent_in_firefox_learns_and_is_the_same_after_a_reload(tmp_path: Path) -> None:
    firefox = shutil.which("firefox-esr") or shutil.which("firefox")
    if firefox is None:
        pytest.skip("Firefox is not installed")
    options, reports = dict[str, str](), queue.Queue[dict[str, Any]]()
    with serve_page(options, reports) as origin:
        flags = "--policy", "population", "--allow-origin", origin
        server = ServerProcess(tmp_path, "sqlite:///store.db", *flags, dimension=D).start()
        try:
            running = server.connect()
            options |= {"url": server.url, "token": running.operator.create_tokens()[0]}
            running.transport.close()
            first, second = browse(firefox, tmp_path / "profile", origin, reports)
        finally:
            server.stop()
    assert "error" not in first, first
    assert "Firefox" in first["browser"]
    print(first["browser"])
    assert (first["done"], first["rounds"], first["trouble"]) == (True, 5, None)
    assert (second["done"], second["rounds"], second["id"]) == (True, 10, first["id"])
