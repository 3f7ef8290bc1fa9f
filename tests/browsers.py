"""A real browser for tests: headless Chromium, driven by Playwright.

Without a browser its tests are skipped; FEDRZO_REQUIRE_BROWSER=1 makes them fail instead, which is what CI asks for.
"""

import contextlib
import os
import shutil

import pytest

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")


def unavailable(reason):
    if os.environ.get("FEDRZO_REQUIRE_BROWSER") == "1":
        pytest.fail(reason)
    pytest.skip(reason)


@contextlib.contextmanager
def start():
    """Yield a browser with a new and empty profile."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        unavailable(f"no browser: none of {', '.join(PROGRAMS)} is installed (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("no driver: playwright is not installed (pip install playwright)")
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=FLAGS)
        yield started
        started.close()


def watch(page):
    """Return two lists that fill while the page is open: what goes wrong in it, and the addresses that it asks for."""
    errors, requests = [], []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("dialog", lambda dialog: errors.append(f"dialog: {dialog.message}"))
    page.on("request", lambda request: requests.append(request.url.split("#")[0]))
    return errors, requests
