"""The site of `make docs`: the Markdown pages of this repository, built with Sphinx.

The source folder is the repository's, so that links to CONTRIBUTING.md and to code work. The pages
contain no directives of Sphinx, since GitHub shows them too: `contents.toml` has their order.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms.post_transforms import SphinxPostTransform

HERE = Path(__file__).parent

project = "chatmemory"
copyright = "the django-chatmemory contributors"  # noqa: A001  # Sphinx reads this name
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/**"]
exclude_patterns = ["docs/examples/*/node_modules"]
source_suffix = {".md": "markdown"}

nitpicky = True
myst_heading_anchors = 6
# GitHub colors languages that Pygments does not know.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = "chatmemory"
html_static_path = ["static/site.css"]
html_extra_path = ["static/index.html"]  # opens the start page
html_css_files = ["site.css"]
html_copy_source = False
html_permalinks_icon = "#"


class LinksToOtherFiles(SphinxPostTransform):
    """Show a link to a folder, or to Markdown that is not a page, as text."""

    default_priority = 8  # before MyST resolves links

    def run(self, **kwargs: Any) -> None:
        page = Path(self.env.doc2path(self.env.docname))
        for node in list(self.document.findall(addnodes.pending_xref)):
            target = node["reftarget"]
            if node["reftype"] != "myst" or target in self.env.all_docs:
                continue
            is_page = node.get("refdomain") == "doc"
            path = Path(self.env.srcdir, f"{target}.md") if is_page else page.parent / target
            if path.exists():
                node.replace_self(nodes.inline("", "", *node[0].children))


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the table of contents to the start page, and its folder to another README."""
    pages = app.env.found_docs
    if name == root_doc:
        contents = tomllib.loads((HERE / "contents.toml").read_text())
        named = [page for part in contents["parts"] for page in part["pages"]]
        for part in contents["parts"]:
            own = [page for page in part["pages"] if page in pages]
            own += in_folder(pages, part.get("folder"), named)
            source[0] += toctree(own, contents.get("titles", {}), part["caption"])
    elif name.startswith("docs/") and name.endswith("/README"):
        source[0] += toctree(in_folder(pages, name.rpartition("/")[0], [name]), {})


def in_folder(pages: set[str], folder: str | None, named: list[str]) -> list[str]:
    """Return the pages directly in a folder that are not named, by file name."""
    return sorted(page for page in pages if page.rpartition("/")[0] == folder and page not in named)


def toctree(pages: list[str], titles: dict[str, str], caption: str = "") -> str:
    lines = ["", "", "```{toctree}", ":hidden:"]
    lines += [f":caption: {caption}"] if caption else []
    entries = (f"{titles[page]} </{page}>" if page in titles else f"/{page}" for page in pages)
    return "\n".join([*lines, "", *entries, "```", ""])


def pages_with_contents(app: Sphinx, *_: object) -> list[str]:
    """Read these pages at each build, since other files change their contents."""
    return [page for page in app.env.found_docs if f"/{page}".endswith("/README")]


def setup(app: Sphinx) -> None:
    app.add_post_transform(LinksToOtherFiles)
    app.connect("source-read", add_contents)
    app.connect("env-get-outdated", pages_with_contents)
