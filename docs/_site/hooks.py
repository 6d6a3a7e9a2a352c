"""What MkDocs runs while it builds the site: the changelog as a page, and links to files that are not pages.

A page links to other files by their relative path, as GitHub shows it. On the site a link that leads out of `docs/`
(to a preset, an example, a source file) becomes the file's address in the repository. A link whose text is the name of
a page's file has the page's title instead.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

ROOT = Path(__file__).parents[2]
# Files of the repository that are pages of the site, too: their path, and that of the page.
PAGES = {"CHANGELOG.md": "changelog.md"}
FENCED = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\[[\w/.-]+\.md)?(\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie outside `docs/`."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Rewrite the links of one page; code is left as it is."""
    uri = page.file.src_uri
    source = {at: name for name, at in PAGES.items()}.get(uri, f"docs/{uri}")
    pieces, end = [], 0
    for fence in FENCED.finditer(markdown):
        pieces += [_relinked(markdown[end : fence.start()], source, uri, config), fence.group()]
        end = fence.end()
    return "".join([*pieces, _relinked(markdown[end:], source, uri, config)])


def _relinked(text: str, source: str, uri: str, config: MkDocsConfig) -> str:
    """The text of a page with the links that lead to a page of the site, or to the repository."""

    def target(link: re.Match[str]) -> str:
        text, opening, path, anchor = link.groups(default="")
        return f"{text and '[' + _title(path, source)}{opening}{_address(path, source, uri, config)}{anchor})"

    return LINK.sub(target, text)


def _title(path: str, source: str) -> str:
    """The first heading of the page that a link leads to; the page's file has one."""
    linked = ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    first = linked.read_text(encoding="utf-8").lstrip() if linked.is_file() else ""
    heading = re.search(r"^# (.*)", first, re.MULTILINE)
    return heading[1] if heading else Path(path).stem


def _address(path: str, source: str, uri: str, config: MkDocsConfig) -> str:
    """Where a relative link leads on the site.

    Args:
        path: the link, relative to its file in the repository.
        source: that file, relative to the top of the repository.
        uri: the page, relative to `docs/`.
        config: names the repository.

    Raises:
        PluginError: nothing is there.
    """
    linked = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    page = PAGES.get(linked, linked.removeprefix("docs/") if linked.startswith("docs/") else None)
    if page is not None:  # MkDocs itself checks whether it exists
        return posixpath.relpath(page, posixpath.dirname(uri) or ".")
    if not (ROOT / linked).exists():
        raise PluginError(f"{source} links to {path}, and there is no {linked}")
    kind = "tree" if (ROOT / linked).is_dir() else "blob"
    return f"{config.repo_url}/{kind}/main/{linked}"
