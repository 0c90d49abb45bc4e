"""Draw the pictures of docs/appearance.md: `python -m pytest tests/pages/draw_pictures.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages.scenes import TALK, open_chat

DOCS = Path(__file__).resolve().parents[2] / "docs"
SIZE = {"width": 1000, "height": 740}
OWN = """
:root {
  --cm-accent: light-dark(#0a6b45, #7fd6a8);
  --cm-on-accent: light-dark(#ffffff, #06251a);
  --cm-user-bubble: light-dark(#dff3e8, #173a2b);
  --cm-shade: light-dark(#f6f3ec, #1d1b17);
  --cm-font: Georgia, "DejaVu Serif", serif;
}
"""
ARABIC = (
    "هل يمكنك المقارنة بين الخطتين؟",
    "| الخطة | السعر |\n| --- | --- |\n| صغيرة | 9 € |\n| كبيرة | 29 € |\n\n"
    'الخطة **الكبيرة** أفضل من أربعة مستخدمين.\n\n```python\nclient.plans.switch("large")\n```',
)


@pytest.mark.parametrize(
    ("name", "scheme", "texts", "options"),
    [
        ("light", "light", TALK, {}),
        ("dark", "dark", TALK, {}),
        ("own", "light", TALK, {"css": OWN}),
        ("rtl", "light", ARABIC, {"language": "ar"}),
    ],
)
def test_draw(launch, chromium, name, scheme, texts, options):
    with launch(chromium).new_context(color_scheme=scheme, viewport=SIZE) as context:
        page = context.new_page()
        open_chat(page, texts, **options)
        page.screenshot(path=DOCS / f"appearance-{name}.png", animations="disabled")
