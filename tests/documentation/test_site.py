"""The site: it is built strictly, asks nobody else for anything, and fits a narrow window."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urljoin

import pytest
from chromium import Page, find_chromium, open_page
from documentation.blocks import PAGES, ROOT

CHROMIUM = find_chromium()
SITE_FILES = ROOT / "docs" / "_site"


def test_every_page_is_in_the_navigation_once():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = re.findall(r"([\w/-]+\.md)$", nav, re.MULTILINE)
    written = [str(page.relative_to(ROOT / "docs")) for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert sorted(listed) == sorted([*written, "changelog.md"])


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it."""
    pytest.importorskip("mkdocs", reason="make docs")
    pytest.importorskip("mkdocstrings", reason="make docs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    said = subprocess.run(
        command,
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert said.returncode == 0, said.stderr
    return folder


@pytest.mark.slow
@pytest.mark.real
def test_the_pages_load_nothing_from_elsewhere(built: Path):
    pages = sorted(built.rglob("*.html"))
    assert len(pages) > len(PAGES)
    loaded = re.compile(
        r"<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
    )
    for page in pages:
        found = [
            url
            for url in loaded.findall(page.read_text(encoding="utf-8"))
            if "disco-llm.github.io" not in url
        ]
        assert found == [], page
    for style in built.rglob("*.css"):
        assert not re.search(r"url\([\"']?https?:|@import", style.read_text(encoding="utf-8")), style


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def browser(built: Path) -> Iterator[tuple[Page, str]]:
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    with served(built) as url, open_page(CHROMIUM) as page:
        yield page, url


def narrow(page: Page, width: int) -> None:
    page.call(
        "Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False
    )


@pytest.mark.slow
@pytest.mark.real
def test_the_search_finds_a_page_and_no_other_host_is_asked(browser: tuple[Page, str]):
    page, url = browser
    page.goto(url + "index.html")
    page.evaluate("document.querySelector('.md-search__input').focus()")
    page.call("Input.insertText", text="budget")
    page.wait("document.querySelector('.md-search-result__link')")
    links = page.evaluate("[...document.querySelectorAll('.md-search-result__link')].map(link => link.href)")
    assert any("how-to/budgets.html" in link for link in links)
    assert page.hosts() == {url.rstrip("/")}
    assert page.complaints() == []


@pytest.mark.slow
@pytest.mark.real
def test_no_page_is_wider_than_a_narrow_window(browser: tuple[Page, str], built: Path):
    """A wide table or block of code is moved inside itself."""
    page, url = browser
    narrow(page, 390)
    too_wide = {}
    for path in sorted(built.rglob("*.html")):
        if path.name == "404.html":
            continue
        page.goto(urljoin(url, str(path.relative_to(built))))
        if (width := page.evaluate("document.documentElement.scrollWidth")) > 390:
            too_wide[str(path.relative_to(built))] = width
    assert too_wide == {}
