"""Draw the picture of the README: a finished demo in a browser.

Needs Chromium and Playwright, which the tools for tests bring: make picture.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import ViewportSize, sync_playwright

PICTURE = Path(__file__).parent.parent / "docs" / "images" / "dashboard.png"
SIZE: ViewportSize = {"width": 1280, "height": 1190}
COLOURS = 160  # enough for a page of few colours, and a third of the bytes
COMMAND = [
    sys.executable,
    "-m",
    "fedcascade",
    "live",
    "--no-browser",
    "--port",
    "0",
    "--pace",
    "1000",
    "--rounds",
    "20000",
]


def draw(url: str) -> None:
    """Wait for the end of the run and both baselines, and take the picture."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        page.goto(url)
        page.wait_for_selector("#progress-text:has-text('all ')", timeout=240_000)
        page.wait_for_function("document.querySelectorAll('#regret .line').length === 3", timeout=240_000)
        page.wait_for_timeout(1500)
        PICTURE.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=PICTURE)
        browser.close()
    with Image.open(PICTURE) as drawn:
        drawn.convert("RGB").quantize(COLOURS).save(PICTURE, optimize=True)


def main() -> None:
    """Run a demo and take the picture."""
    with subprocess.Popen(COMMAND, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        draw(next(hit[1] for line in process.stderr if (hit := re.search(r"dashboard: (\S+)", line))))
        process.send_signal(signal.SIGINT)
        process.stderr.read()
    print(f"{PICTURE}: {PICTURE.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
