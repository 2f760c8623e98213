"""The example of the page on embedding: a site of another origin, and a back end that mints tokens for its users."""

import http.server
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx2 import Response

from fedcascade.service.agent.transport import HttpTransport

from ..service.dashboard.browser import BrowserPage
from ..service.helpers import ServerProcess

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "web-page"
GUIDE = ROOT / "docs" / "how-to-embed-in-a-web-page.md"


def find_free_port() -> int:
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    server.server_close()
    return int(server.server_port)


@contextmanager
def run_back_end(folder: Path, port: int, server: ServerProcess) -> Iterator[str]:
    """The example's back end on that port; yields its origin."""
    site = shutil.copytree(EXAMPLE / "site", folder / "site")
    (site / "server.txt").write_text(server.url, encoding="utf-8")
    environment = os.environ | {"FEDCASCADE_URL": server.url, "PORT": str(port)}
    environment["FEDCASCADE_TOKEN_FILE"] = str(folder / "operator.token")
    command = [sys.executable, str(EXAMPLE / "back_end.py")]
    with subprocess.Popen(
        command, cwd=site, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().decode().strip()
        finally:
            process.terminate()


@pytest.mark.parametrize("path", [EXAMPLE / "site" / "shop.js", EXAMPLE / "back_end.py"])
def test_the_page_shows_the_example_as_it_is(path: Path) -> None:
    assert path.read_text(encoding="utf-8") in GUIDE.read_text(encoding="utf-8")


def test_the_example_runs(browser_page: BrowserPage, tmp_path: Path) -> None:
    port = find_free_port()
    options = "--policy", "population", "--alpha-c", "0.1", "--allow-origin", f"http://127.0.0.1:{port}"
    server = ServerProcess(tmp_path, "sqlite:///store.db", *options).start()
    server.connect().transport.close()
    try:
        with run_back_end(tmp_path, port, server) as origin:
            use_shop(browser_page.page, origin)
            assert browser_page.problems == []
            again = browser_page.page.evaluate("fetch('agent-token', { method: 'POST' }).then(({ status }) => status)")
            assert again == 429  # one token per user and ten minutes
        check_origins(server, f"http://127.0.0.1:{port}")
    finally:
        server.stop()


def use_shop(page: Any, origin: str) -> None:
    page.goto(origin)
    for _ in range(12):
        page.locator("#list button").first.click()
    page.wait_for_selector("body[data-sent]:not([data-sent='0'])")
    page.reload()
    page.wait_for_selector("#list button")


def ask(transport: HttpTransport, method: str, path: str, origin: str) -> Response:
    return transport.send(method, path, b"", {"origin": origin, "access-control-request-method": "POST"})


def check_origins(server: ServerProcess, allowed: str) -> None:
    """What agents need is open to the site, and nothing to others; what operators do is open to no page."""
    name, transport = "access-control-allow-origin", HttpTransport(server.url)
    for path in ("/v1/terms", "/v1/agents", "/v1/exchanges", "/agent/index.js"):
        assert ask(transport, "OPTIONS", path, allowed).headers[name] == allowed
        assert name not in ask(transport, "OPTIONS", path, "https://evil.example").headers
    for path in ("/v1/overview", "/v1/enrolment-tokens", "/live/view", "/"):
        assert name not in ask(transport, "OPTIONS", path, allowed).headers
    headers = ask(transport, "OPTIONS", "/v1/agents", allowed).headers["access-control-allow-headers"]
    assert "authorization" not in headers
    transport.close()
