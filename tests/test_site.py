"""The built site: links, and pages that fit the screen."""

from __future__ import annotations

import subprocess
import sys

import pytest
from test_docs import ROOT

LAPTOP, PHONE = 1280, 390
WIDE_BLOCKS = """[...document.querySelectorAll('pre, pre > code')]
  .filter(block => getComputedStyle(block).display !== 'inline')
  .filter(block => block.scrollWidth > block.clientWidth + 1)
  .map(block => block.innerText.split('\\n').sort((a, b) => b.length - a.length)[0])
"""
PAGE_WIDTH = "document.documentElement.scrollWidth"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it; a broken link or anchor is an error."""
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_no_block_scrolls_sideways_on_a_laptop_and_no_page_on_a_phone(site, browser):
    pages = [page for page in sorted(site.rglob("*.html")) if page.name != "404.html"]
    assert len(pages) > 30
    for page in pages:
        browser.open(page, LAPTOP)
        assert browser.value(WIDE_BLOCKS) == [], page.name
        browser.open(page, PHONE)
        assert browser.value(PAGE_WIDTH) <= PHONE, page.name
