"""Origins of pages: only a scheme, a host and a port."""

from __future__ import annotations

import pytest

from chatmemory.access.embeds import has_origin, is_origin_of_any
from chatmemory.consumers.origins import origin_problem

NO_ORIGINS = [
    "https://shop.example/",
    "https://shop.example:0",
    "https://shop.example?",
    "https://shop.example#",
    "HTTPS://user@shop.example",
    "https://user:secret@shop.example",
    "https://@shop.example",
    " https://shop.example",
    "https://shop.example\n",
    "https:shop.example",
    "null",
    "",
]


@pytest.fixture(autouse=True)
def _origins(settings):
    origins = ["https://shop.example"]
    settings.CHATMEMORY = {"EMBEDS": {"shop": origins}, "ALLOWED_ORIGINS": origins}


def accepted(origin):
    headers = [(b"host", b"testserver"), (b"origin", origin.encode())]
    return [
        has_origin("shop", origin),
        is_origin_of_any(origin),
        origin_problem({"headers": headers}) is None,
    ]


@pytest.mark.regression
@pytest.mark.parametrize("origin", NO_ORIGINS)
def test_a_text_that_is_no_origin_is_refused(origin):
    assert accepted(origin) == [False, False, False]


@pytest.mark.parametrize("origin", ["https://shop.example", "https://shop.example:443"])
def test_the_same_scheme_host_and_port_are_one_origin(origin):
    assert accepted(origin) == [True, True, True]
