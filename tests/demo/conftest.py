"""Pages of a real browser, as in the tests of the dashboard."""

from ..service.conftest import browser_page as browser_page
