"""The documentation in a real browser, opened from the disk as `make docs` leaves it there."""

import subprocess
import sys
from pathlib import Path

import pytest

import browsers

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("docs") / "site"
    build = [sys.executable, "-m", "properdocs", "build", "--strict", "-f", ROOT / "mkdocs.yml", "-d", folder]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def browser():
    with browsers.start() as started:
        yield started


@pytest.fixture
def page(browser, site):
    """The first page; afterwards nothing may have gone wrong, nor been asked for from elsewhere."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(300_000)
    errors, requests = browsers.watch(page)
    page.goto((site / "index.html").as_uri())
    yield page
    page.close()
    assert errors == []
    assert len(requests) > 5
    assert [url for url in requests if not url.startswith((site.as_uri(), "data:"))] == []


@pytest.mark.slow("builds the site and starts a browser")
def test_a_page_is_found_by_searching(page, site):
    page.get_by_role("textbox", name="Search").click()
    page.keyboard.type("halfspace")
    found = page.locator(".md-search-result__link").filter(has_text="The halfspace").first
    found.wait_for()
    found.click()
    page.wait_for_url("**/reference.html*")
    assert page.url.startswith((site / "reference.html").as_uri())
    assert page.get_by_role("heading", name="Halfspace").first.is_visible()


@pytest.mark.slow("looks at every page in a browser")
def test_code_and_its_comments_are_not_cut_off(page, site):
    for name in ("index", "own-problem", "own-method", "commands", "fedrzo-nn"):
        page.goto((site / f"{name}.html").as_uri())
        blocks = page.locator(".language-python > pre, .language-sh > pre, .language-toml > pre").all()
        assert blocks
        for block in blocks:
            hidden = block.locator("code").evaluate("(one) => one.scrollWidth - one.clientWidth")
            assert hidden <= 0, block.text_content()
