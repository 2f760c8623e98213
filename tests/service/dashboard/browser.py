"""A page in a real browser, and what happened in it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parents[3] / ".cache" / "screenshots"


class BrowserPage:
    """A page, and what happened in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.problems: list[str] = []
        self.requests: list[str] = []
        page.on("console", self._record_message)
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))

    def _record_message(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def read_figure(self, name: str) -> str | None:
        """A figure that the page shows, as it has it."""
        value: str | None = self.page.locator("#main").get_attribute(f"data-{name}")
        return value

    def wait_for(self, name: str, value: object, seconds: float = 20.0) -> None:
        self.page.wait_for_selector(f'#main[data-{name}="{value}"]', timeout=1000 * seconds)

    def screenshot(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    def find_violations(self) -> list[str]:
        """What axe-core finds wrong; each with where."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-core is not installed")
        violations = axe.Axe().run(self.page).response["violations"]
        return [f"{rule['id']}: {[node['target'] for node in rule['nodes']]}" for rule in violations]

    def assert_quiet(self, url: str) -> None:
        """No console error, and no request to anywhere else."""
        assert self.problems == []
        assert [address for address in self.requests if not address.startswith(url)] == []


@contextmanager
def record_tasks(page: Any) -> Iterator[list[float]]:
    """Processor time of each task of pages' main threads, in milliseconds; other processes do not count."""
    tasks: list[float] = []
    browser = page.context.browser
    browser.start_tracing(page=page, categories=["toplevel"])
    yield tasks
    events = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {(event["pid"], event["tid"]) for event in events if event.get("args") == {"name": "CrRendererMain"}}
    tasks += [
        event["tdur"] / 1000
        for event in events
        if "RunTask" in event["name"] and "tdur" in event and (event["pid"], event["tid"]) in threads
    ]
