"""The seals of the audit: a hash chain over its entries that reveals later changes.

Entries are inserted without a seal, so that no action waits for another action. A sealer adds the
seals later. Until then, the MAC protects an entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from operator import itemgetter
from typing import Any

from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, ngettext_lazy

from chatmemory.database.batches import Progress, check_size, count_of, in_pages, reported
from chatmemory.database.faults import ignored_duplicate
from chatmemory.database.locks import locked_transaction
from chatmemory.database.retries import durably, retried
from chatmemory.errors import BadInput
from chatmemory.models import AuditEntry, AuditSeal, DatabaseNow
from chatmemory.services.audit.keys import Key, audit_keys
from chatmemory.services.audit.macs import COVERED, MacCheck, Macs, utc_text
from chatmemory.services.maintenance.records import recorded, recorded_findings
from chatmemory.services.maintenance.tasks import Task

CHUNK = 500
"""Default number of entries sealed in one transaction, and of seals read in one statement."""

LOWEST = -(2**63)
"""Below the number of every seal, also of a forged one."""

MAX_UNSEALED_AGE = timedelta(days=3)
"""The seal of an older unsealed entry may have been deleted, so it is sealed only on request."""

MAX_LISTED = 10
"""Number of entries that a finding lists."""

SEALED = ("id", *COVERED, "mac")
"""The columns that a seal covers. A change would invalidate all stored seals."""

_HEAD = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditState:
    """The last seal, and the entries without a seal."""

    head: str
    """The last seal as `number:digest`; empty if there is none."""
    unsealed: int
    oldest_unsealed: datetime | None
    overdue: int = 0
    """Number of unsealed entries older than `MAX_UNSEALED_AGE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Evidence that the audit was changed."""

    code: str
    """One of changed, deleted, seal_changed, seals_missing, cut, replaced, unproven, forged,
    unknown_key."""
    number: int
    """Number of the first seal that shows it; 0 if that entry has no seal."""
    sentence: str
    """In the active language."""


def seal_audit(*, former_keys: Sequence[str] = (), chunk_size: int = CHUNK) -> int:
    """Seal all genuine entries without a seal, oldest first; return their number.

    An entry with a wrong MAC stays unsealed, and `verify_audit` reports it. Existing seals are not
    verified: call `verify_audit` first. Each transaction reads `chunk_size` entries, so this cannot
    be called inside a transaction. Several processes can seal concurrently. An entry that is
    committed late is sealed late, so the seals are not in order of the primary keys.
    Raises MemoryUnavailable.
    """
    check_size("chunk_size", chunk_size)
    macs = Macs([*audit_keys(), *former_keys])
    sealed = after = 0
    with recorded(Task.SEAL) as outcome:
        while chunk := durably(partial(_seal_chunk, after, chunk_size, macs), is_repeatable=True):
            sealed += chunk.sealed
            after = chunk.last_pk
        outcome.counts = {"entries": sealed}
    return sealed


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The result of one transaction of the sealer."""

    sealed: int
    """Number of new seals."""
    last_pk: int
    """The primary key after which the next chunk starts."""


def _seal_chunk(after: int, size: int, macs: Macs) -> _Chunk | None:
    """Seal the genuine entries among the next `size`; None if there are no more entries.

    The unique number replaces a lock. If two processes read the same last seal, the insert of the
    second one fails, and the caller repeats the chunk. So the chain cannot fork.
    """
    last = AuditSeal.objects.order_by("-number").first()
    pks = AuditEntry.objects.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)
    candidates = list(pks[:size])
    if not candidates:
        return None
    # Not one statement with NOT EXISTS: PostgreSQL would read all later entries for each chunk.
    sealed = AuditSeal.objects.filter(entry_pk__range=(candidates[0], candidates[-1]))
    sealed_pks = sealed.values_list("entry_pk", flat=True)
    entries = AuditEntry.objects.filter(pk__in={*candidates}.difference(sealed_pks)).order_by("pk")
    rows = entries.annotate(now=DatabaseNow()).values(*SEALED, "now")
    found = [row for row in rows if macs.check(row) is MacCheck.GENUINE]
    if not found:
        return _Chunk(0, candidates[-1])
    seals = _seals_after(last, found)
    # Durable, so that a caller's rollback cannot remove seals whose head was printed or logged.
    with ignored_duplicate(), locked_transaction(durable=True):
        AuditSeal.objects.bulk_create(seals)
        return _Chunk(len(seals), candidates[-1])
    return _Chunk(0, after)


def _seals_after(last: AuditSeal | None, entries: Sequence[dict[str, Any]]) -> list[AuditSeal]:
    """Return the next seals of the chain, all with the time of the read of the first entry."""
    number, digest = (last.number, last.digest) if last else (0, "")
    sealed_at = entries[0]["now"]
    seals = []
    for entry in entries:
        number += 1
        digest = _seal_digest(audit_keys()[0], digest, sealed_at, entry)
        seals.append(
            AuditSeal(number=number, entry_pk=entry["id"], digest=digest, created_at=sealed_at)
        )
    return seals


@retried(is_repeatable=True)
def audit_state() -> AuditState:
    """Return the last seal and the number of unsealed entries. Raises MemoryUnavailable."""
    last = AuditSeal.objects.order_by("-number").first()
    is_old = Q(created_at__lt=DatabaseNow() - MAX_UNSEALED_AGE)
    unsealed = _unsealed().aggregate(
        count=Count("pk"), oldest=Min("created_at"), overdue=Count("pk", filter=is_old)
    )
    return AuditState(
        head=str(last or ""),
        unsealed=unsealed["count"],
        oldest_unsealed=unsealed["oldest"],
        overdue=unsealed["overdue"],
    )


def verify_audit(
    *,
    head: str = "",
    former_keys: Sequence[str] = (),
    chunk_size: int = CHUNK,
    progress: Progress | None = None,
) -> Iterator[AuditFinding]:
    """Yield evidence of edited, deleted, reordered, truncated or forged entries, by seal number.

    Truncation is detected only with `head`, the `number:digest` from an earlier run. `former_keys`
    are earlier keys that are not in `AUDIT_KEY_FALLBACKS`. One statement reads `chunk_size` seals.
    `progress` is called with the number of seals that are done, and with their total.
    Raises BadInput for a malformed head.
    """
    check_size("chunk_size", chunk_size)
    known = _HEAD.fullmatch(head)
    if head and not known:
        sentence = _("head must be the number:digest of a seal, as an earlier run printed it.")
        raise BadInput(sentence, field="head")
    sealed = _sealed_entries(chunk_size)
    if progress is not None:
        sealed = reported(sealed, progress, count_of(AuditSeal.objects.all()))
    findings = _findings(known and (int(known[1]), known[2]), former_keys, sealed)
    return recorded_findings(Task.VERIFY, findings)


def _findings(
    known: tuple[int, str] | None,
    former_keys: Sequence[str],
    sealed: Iterable[tuple[AuditSeal, dict[str, Any] | None]],
) -> Iterator[AuditFinding]:
    keys = [*audit_keys(), *former_keys]
    chain = _Chain(keys)
    entries = _Entries(keys)
    for seal, entry in sealed:
        yield from chain.link(seal, entry)
        if entry is not None and chain.mismatch is None:
            entries.check(entry, seal.number)
        if known and seal.number == known[0] and seal.digest != known[1]:
            sentence = _(
                "Seal %(seal)s differs from the given head: the chain was rebuilt from this seal "
                "or an earlier one."
            ) % {"seal": seal.number}
            yield AuditFinding(code="replaced", number=seal.number, sentence=sentence)
    yield from chain.end()
    if known and known[0] >= chain.next_number:
        sentence = _(
            "The chain is truncated: the given head is seal %(head)s, but the last stored seal is "
            "%(last)s."
        ) % {"head": known[0], "last": chain.next_number - 1}
        yield AuditFinding(code="cut", number=chain.next_number, sentence=sentence)
    for entry in in_pages(_unsealed().values(*SEALED), value_of=itemgetter("id")):
        entries.check(entry, 0)
    yield from entries.findings()


_WRONG_MACS = {
    MacCheck.FORGED: (
        "forged",
        ngettext_lazy(
            "%(count)s entry (%(pks)s) was edited before it was sealed, or inserted without the "
            "app: the MAC is wrong.",
            "%(count)s entries (%(pks)s) were edited before they were sealed, or inserted without "
            "the app: the MAC is wrong.",
            "n",
        ),
    ),
    MacCheck.UNKNOWN_KEY: (
        "unknown_key",
        ngettext_lazy(
            "%(count)s entry (%(pks)s) was inserted under an unknown key. Add the former key to "
            "AUDIT_KEY_FALLBACKS; without AUDIT_KEY it was SECRET_KEY.",
            "%(count)s entries (%(pks)s) were inserted under an unknown key. Add the former key "
            "to AUDIT_KEY_FALLBACKS; without AUDIT_KEY it was SECRET_KEY.",
            "n",
        ),
    ),
}
"""The code and the sentence of the finding for each kind of wrong MAC."""


class _Entries:
    """Verify the MACs of entries; collect the wrong ones into one finding for each kind."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.macs = Macs(keys)
        self.wrong: dict[MacCheck, _WrongEntries] = {}

    def check(self, entry: Mapping[str, Any], number: int) -> None:
        """Verify the MAC of the entry with this seal number; 0 means none."""
        proof = self.macs.check(entry)
        if proof is not MacCheck.GENUINE:
            self.wrong.setdefault(proof, _WrongEntries(number)).pks.add(entry["id"])

    def findings(self) -> Iterator[AuditFinding]:
        for proof, (code, sentence) in _WRONG_MACS.items():
            if wrong := self.wrong.get(proof):
                count = wrong.pks.count
                text = sentence % {"n": count, "count": f"{count:,}", "pks": wrong.pks}
                yield AuditFinding(code=code, number=wrong.number, sentence=text)


@dataclass(slots=True)
class _Pks:
    """Primary keys of entries; as a text, only the first ones."""

    count: int = 0
    first: list[int] = field(default_factory=list)

    def add(self, entry_pk: int) -> None:
        self.count += 1
        if len(self.first) < MAX_LISTED:
            self.first.append(entry_pk)

    def __str__(self) -> str:
        return ", ".join(map(str, self.first)) + (", …" if self.count > len(self.first) else "")


@dataclass(slots=True)
class _WrongEntries:
    """Entries whose MACs are wrong in the same way."""

    number: int
    """The seal number of the first one."""
    pks: _Pks = field(default_factory=_Pks)


def _unsealed() -> QuerySet[AuditEntry]:
    seals = AuditSeal.objects.filter(entry_pk=OuterRef("pk"))
    return AuditEntry.objects.filter(~Exists(seals))


def _sealed_entries(chunk_size: int) -> Iterator[tuple[AuditSeal, dict[str, Any] | None]]:
    """Yield the seals by number, each with its entry, or None if the entry was deleted."""
    after = LOWEST
    in_order = AuditSeal.objects.order_by("number")
    while seals := list(in_order.filter(number__gt=after)[:chunk_size]):
        pks = [seal.entry_pk for seal in seals]
        entries = {row["id"]: row for row in AuditEntry.objects.filter(pk__in=pks).values(*SEALED)}
        for seal in seals:
            yield seal, entries.get(seal.entry_pk)
        after = seals[-1].number


@dataclass(slots=True)
class _Mismatch:
    """Consecutive seals that do not match; the next matching seal shows what was changed."""

    first: AuditSeal
    pks: _Pks = field(default_factory=_Pks)
    """The entries of the seals."""
    expected: Sequence[str] = ()
    """The digests that the last seal would need to match, one for each key."""

    def add(self, seal: AuditSeal, expected: Sequence[str]) -> None:
        """Add the next seal that does not match."""
        self.pks.add(seal.entry_pk)
        self.expected = expected

    def explained(self, *, is_digest_true: bool) -> AuditFinding:
        """Return what was changed.

        `is_digest_true` means that the next seal continues the stored digest, so that only the
        entry can have been changed.
        """
        if self.pks.count > 1:
            return self.unexplained()
        numbers = {"seal": self.first.number, "entry": self.first.entry_pk}
        if is_digest_true:
            sentence = _("Entry %(entry)s was changed after it was sealed (seal %(seal)s).")
            return AuditFinding(
                code="changed", number=self.first.number, sentence=sentence % numbers
            )
        sentence = _("Seal %(seal)s (entry %(entry)s) was changed.") % numbers
        return AuditFinding(code="seal_changed", number=self.first.number, sentence=sentence)

    def unexplained(self) -> AuditFinding:
        """Return a finding that does not decide between the seals and their entries."""
        first, count = self.first.number, self.pks.count
        sentence = ngettext(
            "%(count)s seal (%(first)s) or its entry (%(pks)s) was changed or moved, or sealed "
            "under an unknown key.",
            "Of %(count)s seals (%(first)s to %(last)s) and their entries (%(pks)s), some were "
            "changed or moved, or sealed under an unknown key.",
            count,
        ) % {"count": count, "first": first, "last": first + count - 1, "pks": self.pks}
        return AuditFinding(code="unproven", number=first, sentence=sentence)


class _Chain:
    """Verify the chain, seal by seal."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = list(keys)
        self.next_number = 1
        self.digest = ""
        """The stored digest of the last seal, whether or not it matched."""
        self.mismatch: _Mismatch | None = None
        """The directly preceding seals that do not match."""

    def link(self, seal: AuditSeal, entry: Mapping[str, Any] | None) -> Iterator[AuditFinding]:
        """Verify the next seal."""
        numbers = {"seal": seal.number, "entry": seal.entry_pk}
        if seal.number < 1:
            sentence = _("Seal %(seal)s (entry %(entry)s) is not part of the chain.") % numbers
            yield AuditFinding(code="seal_changed", number=seal.number, sentence=sentence)
            return
        follows_last = seal.number == self.next_number
        if not follows_last:
            yield from self.end()
            yield self._missing_seals(seal)
        self.next_number = seal.number + 1
        if entry is None:
            yield from self.end()
            sentence = _("Entry %(entry)s (seal %(seal)s) was deleted.") % numbers
            yield AuditFinding(code="deleted", number=seal.number, sentence=sentence)
        elif follows_last:
            yield from self._compare(seal, entry)
        self.digest = seal.digest

    def end(self) -> Iterator[AuditFinding]:
        """Report seals whose mismatch no later seal explained."""
        if self.mismatch is not None:
            yield self.mismatch.unexplained()
        self.mismatch = None

    def _compare(self, seal: AuditSeal, entry: Mapping[str, Any]) -> Iterator[AuditFinding]:
        """Verify a seal that directly follows the last one."""
        # After a mismatch, either the last seal or its entry was changed. This seal continues the
        # stored digest if the entry was changed, and an expected one if the seal was changed.
        continues_stored = self._fits(seal, entry, self.digest)
        if continues_stored or self._continues_expected(seal, entry):
            if self.mismatch is not None:
                yield self.mismatch.explained(is_digest_true=continues_stored)
            self.mismatch = None
            return
        if self.mismatch is None:
            self.mismatch = _Mismatch(seal)
        expected = [_seal_digest(key, self.digest, seal.created_at, entry) for key in self.keys]
        self.mismatch.add(seal, expected)

    def _continues_expected(self, seal: AuditSeal, entry: Mapping[str, Any]) -> bool:
        expected = () if self.mismatch is None else self.mismatch.expected
        return any(self._fits(seal, entry, digest) for digest in expected)

    def _fits(self, seal: AuditSeal, entry: Mapping[str, Any], before: str) -> bool:
        for key in self.keys:
            if constant_time_compare(
                _seal_digest(key, before, seal.created_at, entry), seal.digest
            ):
                if key is not self.keys[0]:  # its neighbors probably use this key too
                    self.keys.remove(key)
                    self.keys.insert(0, key)
                return True
        return False

    def _missing_seals(self, seal: AuditSeal) -> AuditFinding:
        first, last = self.next_number, seal.number - 1
        sentence = ngettext(
            "%(count)s seal (%(first)s) is missing, so entry %(entry)s of the next seal cannot be "
            "verified.",
            "%(count)s seals (%(first)s to %(last)s) are missing, so entry %(entry)s of the next "
            "seal cannot be verified.",
            last - first + 1,
        ) % {"count": last - first + 1, "first": first, "last": last, "entry": seal.entry_pk}
        return AuditFinding(code="seals_missing", number=first, sentence=sentence)


def _seal_digest(key: Key, before: str, sealed_at: datetime, entry: Mapping[str, Any]) -> str:
    """Return the keyed hash over the previous digest, the seal's time and the entry."""
    columns = {name: entry[name] for name in SEALED}
    columns["created_at"] = utc_text(columns["created_at"])
    sealed = json.dumps([before, utc_text(sealed_at), columns], sort_keys=True)
    return salted_hmac("chatmemory.seal", sealed, secret=key, algorithm="sha256").hexdigest()
