"""The CPU time of the chat page, `python -m tests.programs.benchmarks.streaming`."""

from __future__ import annotations

import re

import pytest

from chatmemory.rendering.markdown import MarkdownStream
from tests import frames
from tests.pages.test_chat_js import FILES
from tests.programs.benchmarks.streaming import TEXTS, frames_of, main


@pytest.mark.parametrize("text", TEXTS.values())
def test_the_frames_are_those_of_the_text(text):
    sent = [frame for frames_of_tick in frames_of(text[:2_000]) for frame in frames_of_tick]
    for frame in sent:
        frames.check("server", frame)
    assert "".join(str(frame.get("text", "")) for frame in sent) == text[:2_000]
    html = "".join(MarkdownStream().feed(text[:2_000]))
    assert "".join(str(frame.get("html", "")) for frame in sent) == html


@pytest.mark.browser
@pytest.mark.long
def test_each_version_is_measured_with_each_text(chromium, capsys):
    main([FILES, FILES], chars=160)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * len(TEXTS)
    assert all(re.match(r" *\d+\.\d%  ", line) for line in lines)
