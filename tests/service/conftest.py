"""A real browser: Debian's Chromium, driven by Playwright. Tests that need one skip where either is missing."""

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from .dashboard.browser import BrowserPage

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--disable-background-networking"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture
def browser_page(browser: Any) -> Iterator[BrowserPage]:
    """A fresh page of a fresh profile."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
    yield BrowserPage(context.new_page())
    context.close()
