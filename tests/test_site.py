"""The site of `make docs`, and the length of its pages."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.blocks import pages_in_docs

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 2_500
"""Words of a page, as `wc -w` counts them."""

GENERATED = {
    "reasons/peers.md",
    "reasons/performance.md",
    "reference/commands.md",
    "reference/frames.md",
    "reference/services.md",
    "reference/settings.md",
}
"""Longer pages that programs write, for looking something up."""


def words_of_pages():
    folder = ROOT / "docs"
    return {
        str(path.relative_to(folder)): len(path.read_text().split()) for path in pages_in_docs()
    }


def test_no_page_is_longer_than_the_limit():
    words = words_of_pages()
    pages = {page: count for page, count in words.items() if page not in GENERATED}
    assert {page: n for page, n in pages.items() if n > LIMIT} == {}


def test_each_name_of_the_contents_has_a_page():
    parts = tomllib.loads((ROOT / "docs/contents.toml").read_text())["parts"]
    named = [page for part in parts for page in part["pages"]]
    assert len({*named}) == len(named)
    assert [page for page in named if not (ROOT / f"{page}.md").exists()] == []


def test_the_start_page_links_each_page():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)", (ROOT / "docs/README.md").read_text()))
    pages = {page for page in words_of_pages() if "/decisions/0" not in page}
    assert pages - linked == {"README.md"}


@pytest.fixture
def small_site(tmp_path):
    """Copy the configuration of the site, with two pages of its own."""
    docs = tmp_path / "docs"
    (docs / "start").mkdir(parents=True)
    shutil.copy(ROOT / "docs/conf.py", docs)
    shutil.copytree(ROOT / "docs/static", docs / "static")
    (docs / "contents.toml").write_text(
        '[titles]\n"docs/start/first" = "Begin"\n'
        '[[parts]]\ncaption = "Start"\npages = ["docs/start/first"]\nfolder = "docs/start"\n'
    )
    (docs / "README.md").write_text("# Docs\n\nSee [first](start/first.md#two-words).\n")
    (docs / "start/first.md").write_text("# First\n\n## Two words\n\nSee [code](../../code/).\n")
    (docs / "start/second.md").write_text("# Second\n")
    (tmp_path / "code").mkdir()
    return docs


def build(docs):
    """Run the command of `make site` on another folder."""
    rule = (ROOT / "Makefile").read_text().partition("\nsite: ")[2]
    [arguments] = re.findall(r"\$\(BIN\)/python (-m sphinx .+)", rule.partition("\n\n")[0])
    command = [sys.executable, *arguments.split()]
    return subprocess.run(command, cwd=docs.parent, check=False, capture_output=True, text=True)  # noqa: S603  # our own command line


@pytest.mark.long
def test_the_site_has_the_pages_of_the_contents_and_those_of_their_folders(small_site):
    done = build(small_site)
    assert (done.returncode, done.stderr) == (0, "")
    site = small_site.parent / "build/docs"
    [target] = re.findall(r"url=(\S+?)\"", (site / "index.html").read_text())
    start = (site / target).read_text()
    links = re.findall(r'href="start/(\w+)\.html"', start)
    assert [*dict.fromkeys(links)] == ["first", "second"]
    assert 'href="start/first.html">Begin<' in start
    assert 'href="start/first.html#two-words"' in start
    (small_site / "start/another.md").write_text("# Another\n")
    assert (build(small_site).returncode, (site / "docs/start/another.html").exists()) == (0, True)
    assert "See code." in re.sub(r"<[^>]+>", "", (site / "docs/start/first.html").read_text())


@pytest.mark.long
@pytest.mark.parametrize(
    ("page", "text", "warning"),
    [
        ("start/second.md", "See [first](first.md#three-words).", "three-words"),
        ("start/second.md", "See [here](#nowhere).", "nowhere"),
        ("start/second.md", "See [a page](third.md).", "third"),
        ("start/second.md", "See [a folder](../../other/).", "other"),
        ("start/second.md", "![A picture.](missing.png)", "missing.png"),
        ("elsewhere/third.md", "# Third", "toctree"),
    ],
    ids=["anchor", "own anchor", "page", "folder", "picture", "not in the contents"],
)
def test_a_page_that_leads_nowhere_fails_the_build(small_site, page, text, warning):
    (small_site / page).parent.mkdir(exist_ok=True)
    (small_site / page).write_text(f"# A page\n\n{text}\n")
    done = build(small_site)
    assert done.returncode == 1
    [line] = [line for line in done.stderr.splitlines() if "WARNING" in line]
    assert warning in line
    assert Path(page).name in line
