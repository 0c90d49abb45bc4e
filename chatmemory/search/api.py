"""The search over REST."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from rest_framework.request import Request
from rest_framework.response import Response

from chatmemory.access import rates
from chatmemory.api.base import View
from chatmemory.database.retries import durably
from chatmemory.models import Session, starts_of
from chatmemory.pages.listing import title_of
from chatmemory.search.requests import OPERATIONS, SEARCH_BODY
from chatmemory.search.searching import search_messages
from chatmemory.search.values import Hit
from chatmemory.services import Actor
from chatmemory.services.audit.readings import merged, record_reading
from chatmemory.services.sessions import sessions_of


class Search(View):
    """Finds messages of the person. A POST, so that no log of addresses contains the query."""

    check_write = staticmethod(rates.check_reads)
    operations = OPERATIONS
    """Its description in OpenAPI."""

    def post(self, request: Request) -> Response:
        body = self.body(SEARCH_BODY)
        found = search_messages(by=self.actor, **body.arguments())
        titles = durably(partial(_titles, found.hits, self.actor), is_repeatable=True)
        # A session may have been removed meanwhile.
        hits = [hit for hit in found.hits if hit.session_pk in titles]
        if self.actor.real is not None:
            record_readings(hits, self.actor.real)
        return Response(
            {
                "hits": [_public(hit, titles[hit.session_pk]) for hit in hits],
                "partial": found.partial,
                "cursor": found.cursor,
            }
        )


def _titles(hits: Sequence[Hit], by: Actor) -> dict[int, str]:
    """Return what lists show for the sessions of the hits, by their primary key."""
    pks = {hit.session_pk for hit in hits}
    if not pks:
        return {}
    stored = dict(sessions_of(by).filter(pk__in=pks).values_list("pk", "title"))
    starts = starts_of(pk for pk, title in stored.items() if not title)
    return {pk: title_of(title, starts.get(pk)) for pk, title in stored.items()}


def record_readings(hits: Sequence[Hit], by: Actor) -> None:
    """Record that an operator reads these messages in the name of their person."""
    seqs: dict[tuple[int, str], list[int]] = defaultdict(list)
    for hit in hits:
        seqs[hit.session_pk, hit.session_key].append(hit.seq)
    for (pk, key), found in seqs.items():
        session = Session(pk=pk, key=key)
        for low, high in merged([[seq, seq] for seq in found]):
            record_reading(session=session, by=by, from_seq=low, to_seq=high)


def _public(hit: Hit, title: str) -> dict[str, object]:
    return {
        "session": hit.session_key,
        "title": title,
        "seq": hit.seq,
        "role": hit.role,
        "at": hit.created_at.isoformat(),
        "snippet": hit.snippet,
        "ranges": [[*each] for each in hit.ranges],
        "score": hit.score,
    }
