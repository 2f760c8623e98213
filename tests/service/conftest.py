"""Pages of a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from .dashboard.browser import BrowserPage


@pytest.fixture
def browser_page(browser: Any) -> Iterator[BrowserPage]:
    """A fresh page of a fresh profile."""
    context = browser.new_context(viewport={"width": 1360, "height": 900}, reduced_motion="reduce")
    yield BrowserPage(context.new_page())
    context.close()
