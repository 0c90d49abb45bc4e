"""The examples of the CommonMark specification, stored and streamed."""

from __future__ import annotations

import random

import pytest

from chatmemory.rendering.markdown import markdown
from tests.rendering.events import events
from tests.rendering.pieces import streamed
from tests.rendering.specification import examples

DIFFERENT = {
    "Raw HTML is text.": {
        *(21, 31, 201, 308, 309, 344, 475, 476, 477, 491, 494, 524, 536, 642, 643),
        *range(148, 192),
        *(613, 614, 615, 616, 617, 623, 625, 626, 627, 628, 629, 630, 631),
    },
    "An image becomes its description.": {517, 520, 531, *range(572, 590), 591, 592},
    "Only links to http, https and mailto are allowed.": {596, 598, 599, 601},
    "A link needs a host without encoded characters.": {346},
    "A plain address is a link, as on GitHub.": {602, 608, 611, 612},
    "A definition without a link is shown at the end.": {
        *(204, 207, 208, 210, 317, 537, 538, 544, 545, 563, 565, 567, 571),
    },
    "Code is highlighted.": {142, 143},
    r"\[ and \] enclose a formula.": {12},
    "An encoded line end is a character, which the comparison takes for a line break.": {39},
}

LATE_DEFINITIONS = {
    *(23, 33, 203, 204, 214, 218, *range(527, 537), 539, 540, 542, 543, 549, *range(553, 563)),
    *(565, 566, *range(568, 572), 573, 576, 577, *range(582, 590), 591, 593),
}
"""Examples in which a link comes before its definition."""


@pytest.mark.slow
def test_each_example_becomes_the_html_of_the_specification_or_is_listed():
    found = examples()
    assert len(found) == 652
    different = {
        example.number
        for example in found
        if events(markdown(example.text)) != events(example.html, with_breaks=True)
    }
    assert different == set().union(*DIFFERENT.values())


@pytest.mark.slow
def test_each_example_in_random_pieces_becomes_the_stored_html_unless_it_defines_later():
    pieces = random.Random(7)  # noqa: S311  # not for security
    found = examples()
    different = {
        example.number
        for example in found
        for _ in range(3)
        if streamed(example.text, pieces) != markdown(example.text)
    }
    assert different == LATE_DEFINITIONS
    assert all("]:" in example.text for example in found if example.number in different)
