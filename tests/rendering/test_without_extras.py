"""Without Pygments, linkify-it-py, mdit-py-plugins and latex2mathml, everything else works."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys

for name in ("latex2mathml", "linkify_it", "mdit_py_plugins", "pygments"):
    sys.modules[name] = None  # an import raises ImportError
import django
from django.conf import settings
settings.configure()
django.setup()
from chatmemory.rendering.markdown import MarkdownStream, markdown

text = sys.stdin.read()
stream = MarkdownStream()
assert "".join([*stream.feed(text), *stream.close()]) == markdown(text)
print(markdown(text), end="")
"""

CODE = '<pre tabindex="0" role="group" aria-label="Code">'
CASES = {
    "```python\na = 1\n```": f'{CODE}<code class="language-python">a = 1\n</code></pre>\n',
    "see https://a.example and a@b.org": "<p>see https://a.example and a@b.org</p>\n",
    "a[^1]\n\n[^1]: b\n\n[^2]: /c": "<p>a[^1]</p>\n<p>[^1]: b</p>\n<p>[^2]: /c</p>\n",
    "- [x] ~~a~~ $b_1_$\n": (
        '<ul class="contains-task-list">\n<li class="task-list-item">'
        '<span class="task-checkbox">☑</span> <del>a</del> <span class="math">$b_1_$</span></li>\n'
        "</ul>\n"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("text", CASES)
def test_a_feature_without_its_library_is_plain(text):
    result = subprocess.run(  # noqa: S603  # the command is constant
        [sys.executable, "-c", SCRIPT], input=text, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert result.stdout == CASES[text]
