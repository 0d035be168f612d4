"""The documentation as a site: it builds without a warning, and who reads it asks no other server for anything."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.doc_commands import ROOT

pytestmark = pytest.mark.install

LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\ssrc="?(https?:|//)[^>]*>"""
    r"""|<link\b[^>]*rel="?(?:stylesheet|preconnect|preload|icon)[^>]*href="?(https?:|//)[^>]*>"""
)
"""What a browser fetches by itself; links that a reader may follow are not among it."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    beside = Path(sys.executable).with_name("mkdocs")
    mkdocs = str(beside) if beside.exists() else shutil.which("mkdocs")
    if mkdocs is None:
        reason = "mkdocs is not installed; `make docs` does it, or pip install '.[docs]'"
        if os.environ.get("EDL_REQUIRE_CHART_TOOLS") == "1":
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [mkdocs, "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 15
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert not LOADED.search(html), f"{page.name}: {LOADED.search(html)}"
        assert 'class="mermaid"' not in html, "the theme would load a program for it from a public server"
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(['\"]?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet.name


def test_every_page_has_a_search_box_that_finds_all_pages(site: Path) -> None:
    for page in site.rglob("index.html"):
        assert 'data-md-component="search-query"' in page.read_text(encoding="utf-8"), page
    entries = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    places = {entry["location"].partition("#")[0] for entry in entries}
    assert places == {f"{page.parent.relative_to(site)}/".removeprefix("./") for page in site.rglob("index.html")}


def test_figures_take_the_colours_of_the_page(site: Path) -> None:
    for page in ("elasticity", "ledger", "strategies", "priorities"):
        html = (site / "concepts" / page / "index.html").read_text(encoding="utf-8")
        assert html.count('<svg class="edl-figure"') == 1, page
        assert "<desc>" in html, f"{page}: a figure says in words what it shows"


@pytest.mark.parametrize(
    ("page", "source"), [("chart-edl", "edl"), ("chart-edl-job", "edl-job")], ids=["edl", "edl-job"]
)
def test_the_values_of_the_charts_are_on_the_site(site: Path, page: str, source: str) -> None:
    """Read from the charts' own pages, which helm-docs writes."""
    html = (site / "reference" / page / "index.html").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| (\S+) \| ", (ROOT / "helm" / source / "README.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    values = [name for name in rows if "." in name]
    assert len(values) > 10
    assert [name for name in values if f"<td>{name}</td>" not in html] == []


def test_pages_from_beside_the_docs_lead_to_pages(site: Path) -> None:
    """From them to the site's own, and from those to them."""
    assert 'href="../network/"' in (site / "reference/kustomize/index.html").read_text(encoding="utf-8")
    premises = (site / "tutorials/on-premises/index.html").read_text(encoding="utf-8")
    assert 'href="../../reference/kustomize/"' in premises


def test_sources_of_the_site_are_not_published(site: Path) -> None:
    assert not list(site.rglob("*.py"))
