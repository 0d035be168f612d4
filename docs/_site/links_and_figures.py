"""What MkDocs does to the pages beyond Markdown: links to files beside ``docs/``, and figures that follow the colours.

Pages are read in the repository, too, where a link to ``../helm/edl/README.md`` is right. The site does not hold that
file: with a ``repo_url`` the link leads there, without one it is the file's path as text. A link to a file that does
not exist is a warning, which ``--strict`` makes an error, as MkDocs does for links between pages.

Some files beside ``docs/`` are pages of the site, read where they are: nobody copies them.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

_LOG = logging.getLogger("mkdocs.plugins.edl")
_LINK = re.compile(r"(?<!!)\[(?P<text>[^\]]+)\]\((?P<target>(?!https?:|mailto:|#)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_FIGURE = re.compile(r'<img alt="(?P<alt>[^"]*)" src="(?P<source>[^":]+\.svg)"\s*/?>')
_BADGES = re.compile(r"^(?:!\[[^\]]*\]\(https://img\.shields\.io/[^)]*\)\s*)+$", re.MULTILINE)
"""Of charts' catalogues: pictures that a browser would fetch from there."""
BESIDE = {
    "reference/chart-edl.md": "helm/edl/README.md",
    "reference/chart-edl-job.md": "helm/edl-job/README.md",
    "reference/kustomize.md": "kustomize/README.md",
}
"""Pages of the site whose text is a file beside ``docs/``, by the repository's paths."""


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages whose files are beside ``docs/``."""
    root = Path(config["docs_dir"]).parent
    for page, source in BESIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(root / source)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Lead links that leave ``docs/`` into the repository; blocks of code stay as they are."""
    here = Path(page.file.abs_src_path).parent
    site = _Site(Path(config["docs_dir"]), config.get("repo_url") or "", page.file.src_uri)
    parts = _FENCE.split(_BADGES.sub("", markdown))
    return "".join(part if part.startswith("```") else site.led(part, here) for part in parts)


def on_page_content(html: str, *, page: Any, config: Any, **_: Any) -> str:
    """Put SVG figures into the page, so that they take its colours."""

    def inlined(match: re.Match[str]) -> str:
        file = Path(config["docs_dir"], posixpath.normpath(posixpath.join(page.url, match["source"])))
        if not file.is_file():
            _LOG.warning("%s: the figure %s does not exist", page.file.src_uri, match["source"])
            return match[0]
        svg = file.read_text(encoding="utf-8").partition("?>")[2]
        return f'<figure role="img" aria-label="{match["alt"]}">{svg}</figure>'

    return _FIGURE.sub(inlined, html)


class _Site:
    """Where the links of one page lead."""

    def __init__(self, docs: Path, repository: str, page: str) -> None:
        self._docs = docs
        self._root = docs.parent
        self._repository = repository.rstrip("/")
        self._folder = posixpath.dirname(page)
        self._pages = {docs.parent / source: uri for uri, source in BESIDE.items()}

    def led(self, text: str, here: Path) -> str:
        """A part of a page without code, its links to files outside replaced."""
        return _LINK.sub(lambda match: self._link(match, here), text)

    def _link(self, match: re.Match[str], here: Path) -> str:
        target = (here / match["target"]).resolve()
        page = self._page(target)
        if page is not None:
            return f"[{match['text']}]({posixpath.relpath(page, self._folder)}{match['anchor'] or ''})"
        if not target.is_relative_to(self._root):
            return match[0]
        path = target.relative_to(self._root).as_posix()
        if not target.exists():
            _LOG.warning("%s: the link to %s leads nowhere", here.relative_to(self._root).as_posix(), path)
        if self._repository:
            return f"[{match['text']}]({self._repository}/blob/main/{path}{match['anchor'] or ''})"
        text = match["text"].strip("`")
        return f"`{path}`" if path.endswith(text) or text.endswith(path) else f"{match['text']} (`{path}`)"

    def _page(self, target: Path) -> str | None:
        """The site's page or figure that a file is, if it is one."""
        if target.suffix in {".md", ".svg"} and target.is_relative_to(self._docs):
            return target.relative_to(self._docs).as_posix()
        return self._pages.get(target)
