"""The seals of the audit: a hash chain over its entries that reveals later changes.

Entries are inserted without a seal, so that no act waits for another; a sealer adds seals later.
Until then an entry is protected by its MAC.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db import IntegrityError
from django.db.models import Count, Exists, Min, OuterRef, Q, QuerySet
from django.utils.crypto import constant_time_compare, salted_hmac

from chatmemory.errors import BadInput
from chatmemory.models import AuditEntry, AuditSeal, DatabaseNow
from chatmemory.services.faults import Fault, durably, fault_of
from chatmemory.services.keys import Key, audit_keys
from chatmemory.services.locks import unit
from chatmemory.services.macs import COVERED, Macs, Proof, written
from chatmemory.services.pool import in_pool

CHUNK = 500
"""Entries looked at and sealed in one transaction, and seals read at a time."""

LOWEST = -(2**63)
"""No seal has a number as low."""

MAX_UNSEALED_AGE = timedelta(days=3)
"""An entry that is older and has no seal may have lost it: it is sealed only on request."""

NAMED = 10
"""How many entries a finding names."""

SEALED = ("id", *COVERED, "mac")
"""The columns of an entry that its seal covers. One more would break all seals there are."""

_HEAD = re.compile(r"([1-9][0-9]{0,17}):([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditState:
    """How far the audit is sealed."""

    head: str
    """The last seal as `number:digest`; empty if there is none."""
    unsealed: int
    oldest_unsealed: datetime | None
    overdue: int = 0
    """Unsealed entries older than `MAX_UNSEALED_AGE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFinding:
    """Evidence that the audit was changed."""

    code: str
    """One of changed, deleted, seal_changed, seals_missing, cut, replaced, unproven, forged,
    unknown_key."""
    number: int
    """Of the first seal that shows it; 0 if that entry has no seal."""
    sentence: str


def seal_audit(*, former_keys: Sequence[str] = ()) -> int:
    """Seal all genuine entries that have no seal yet, the oldest first; return their number.

    An entry whose MAC is wrong stays unsealed, and `verify_audit` finds it. What is sealed already
    is not verified: call `verify_audit` first. Entries are sealed in chunks, each with a
    transaction of its own, so this cannot be called in a transaction. Several processes may seal
    at the same time. An entry that is committed late is sealed late: the seals are not in order of
    the primary keys. Raises MemoryUnavailable.
    """
    macs = Macs([*audit_keys(), *former_keys])
    sealed = after = 0
    while chunk := durably(partial(_seal_chunk, after, macs), is_repeatable=True):
        sealed += chunk.sealed
        after = chunk.last_pk
    return sealed


@dataclass(frozen=True, slots=True)
class _Chunk:
    sealed: int
    last_pk: int


def _seal_chunk(after: int, macs: Macs) -> _Chunk | None:
    """Seal the next genuine entries; None if there are no more entries.

    The unique number is the lock: of two that read the same last seal the second is refused, so
    no two chains can grow from one seal, and reads again.
    """
    last = AuditSeal.objects.order_by("-number").first()
    pks = AuditEntry.objects.filter(pk__gt=after).order_by("pk").values_list("pk", flat=True)
    looked_at = list(pks[:CHUNK])
    if not looked_at:
        return None
    # Not one statement: with an anti-join PostgreSQL read all the rest for each chunk.
    sealed = AuditSeal.objects.filter(entry_pk__range=(looked_at[0], looked_at[-1]))
    sealed_pks = sealed.values_list("entry_pk", flat=True)
    entries = AuditEntry.objects.filter(pk__in={*looked_at}.difference(sealed_pks)).order_by("pk")
    rows = entries.annotate(now=DatabaseNow()).values(*SEALED, "now")
    found = [row for row in rows if macs.check(row) is Proof.GENUINE]
    if not found:
        return _Chunk(0, looked_at[-1])
    seals = _seals_after(last, found)
    try:
        with unit(durable=True):
            AuditSeal.objects.bulk_create(seals)
    except IntegrityError as error:
        if fault_of(error) is not Fault.DUPLICATE:
            raise
        return _Chunk(0, after)
    return _Chunk(len(seals), looked_at[-1])


def _seals_after(last: AuditSeal | None, entries: Sequence[dict[str, Any]]) -> list[AuditSeal]:
    """The next links of the chain, all of the time at which the first entry was read."""
    number, digest = (last.number, last.digest) if last else (0, "")
    sealed_at = entries[0]["now"]
    seals = []
    for entry in entries:
        number += 1
        digest = _digest(audit_keys()[0], digest, sealed_at, entry)
        seals.append(
            AuditSeal(number=number, entry_pk=entry["id"], digest=digest, created_at=sealed_at)
        )
    return seals


def audit_state() -> AuditState:
    """The last seal, and how many entries wait for one. Raises MemoryUnavailable."""

    def work() -> AuditState:
        last = AuditSeal.objects.order_by("-number").first()
        is_old = Q(created_at__lt=DatabaseNow() - MAX_UNSEALED_AGE)
        waiting = _unsealed().aggregate(
            count=Count("pk"), oldest=Min("created_at"), overdue=Count("pk", filter=is_old)
        )
        return AuditState(
            head=str(last or ""),
            unsealed=waiting["count"],
            oldest_unsealed=waiting["oldest"],
            overdue=waiting["overdue"],
        )

    return durably(work, is_repeatable=True)


def verify_audit(*, head: str = "", former_keys: Sequence[str] = ()) -> Iterator[AuditFinding]:
    """Yield what was edited, deleted, reordered, cut or forged; in order of the seals.

    A cut end shows only against a `head`, the `number:digest` that an earlier run gave.
    `former_keys` are earlier keys that are not in `AUDIT_KEY_FALLBACKS`.
    Raises BadInput for a malformed head.
    """
    known = _HEAD.fullmatch(head)
    if head and not known:
        raise BadInput("A head is a seal's number:digest, as an earlier run gave it.", field="head")
    return _findings(known and (int(known[1]), known[2]), former_keys)


def _findings(known: tuple[int, str] | None, former_keys: Sequence[str]) -> Iterator[AuditFinding]:
    keys = [*audit_keys(), *former_keys]
    chain = _Chain(keys)
    entries = _Entries(keys)
    for seal, entry in _sealed_entries():
        yield from chain.link(seal, entry)
        if entry is not None and chain.doubt is None:
            entries.check(entry, seal.number)
        if known and seal.number == known[0] and seal.digest != known[1]:
            yield AuditFinding(
                code="replaced",
                number=seal.number,
                sentence=f"Seal {seal.number} is not the one of the given head: "
                "the chain was made anew from here or from before.",
            )
    yield from chain.end()
    if known and known[0] >= chain.next_number:
        yield AuditFinding(
            code="cut",
            number=chain.next_number,
            sentence=f"The end is cut off: the given head is seal {known[0]}, "
            f"the last one there is {chain.next_number - 1}.",
        )
    for entry in _unsealed().order_by("pk").values(*SEALED).iterator():
        entries.check(entry, 0)
    yield from entries.findings()


class _Entries:
    """Entries whose MAC is wrong, one finding for all of a kind."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self.macs = Macs(keys)
        self.found: dict[Proof, _Wrong] = {}

    def check(self, entry: Mapping[str, Any], number: int) -> None:
        """Check the MAC of the entry with this seal; 0 is none."""
        proof = self.macs.check(entry)
        if proof is not Proof.GENUINE:
            self.found.setdefault(proof, _Wrong(number)).add(entry["id"])

    def findings(self) -> Iterator[AuditFinding]:
        if wrong := self.found.get(Proof.FORGED):
            yield AuditFinding(
                code="forged",
                number=wrong.number,
                sentence=f"{wrong} edited before the seal was made, or inserted by other means "
                "than the app: the MAC is wrong.",
            )
        if wrong := self.found.get(Proof.UNKNOWN_KEY):
            yield AuditFinding(
                code="unknown_key",
                number=wrong.number,
                sentence=f"{wrong} inserted under a key that is not given. Add it to "
                "AUDIT_KEY_FALLBACKS.",
            )


@dataclass(slots=True)
class _Wrong:
    """Entries with the same fault."""

    number: int
    count: int = 0
    named: list[int] = field(default_factory=list)

    def add(self, entry_pk: int) -> None:
        self.count += 1
        if len(self.named) < NAMED:
            self.named.append(entry_pk)

    def __str__(self) -> str:
        pks = ", ".join(map(str, self.named)) + (", …" if self.count > len(self.named) else "")
        return f"Entry {pks} was" if self.count == 1 else f"{self.count:,} entries ({pks}) were"


def _unsealed() -> QuerySet[AuditEntry]:
    seals = AuditSeal.objects.filter(entry_pk=OuterRef("pk"))
    return AuditEntry.objects.filter(~Exists(seals))


def _sealed_entries() -> Iterator[tuple[AuditSeal, dict[str, Any] | None]]:
    """Each seal in order of its number with its entry, or None where that is gone."""
    after = LOWEST
    while seals := list(AuditSeal.objects.filter(number__gt=after).order_by("number")[:CHUNK]):
        pks = [seal.entry_pk for seal in seals]
        entries = {row["id"]: row for row in AuditEntry.objects.filter(pk__in=pks).values(*SEALED)}
        for seal in seals:
            yield seal, entries.get(seal.entry_pk)
        after = seals[-1].number


@dataclass(slots=True)
class _Doubt:
    """Seals in a row that don't fit; what was changed shows at the next one that does."""

    first: AuditSeal
    last: AuditSeal
    count: int = 1
    named: list[int] = field(default_factory=list)

    def add(self, seal: AuditSeal) -> None:
        """One more."""
        self.last = seal
        self.count += 1
        if len(self.named) < NAMED:
            self.named.append(seal.entry_pk)

    def solved(self, *, is_digest_true: bool) -> AuditFinding:
        """What was changed, now that the next seal is known to stand on the last digest or not."""
        seal = self.first
        if self.count > 1:
            return self.unproven()
        if is_digest_true:
            sentence = f"Entry {seal.entry_pk} was changed after seal {seal.number} was made."
            return AuditFinding(code="changed", number=seal.number, sentence=sentence)
        sentence = f"Seal {seal.number}, of entry {seal.entry_pk}, was changed."
        return AuditFinding(code="seal_changed", number=seal.number, sentence=sentence)

    def unproven(self) -> AuditFinding:
        pks = ", ".join(map(str, self.named)) + (", …" if self.count > len(self.named) else "")
        entries = f"entry {pks} and its" if self.count == 1 else f"the entries {pks} and their"
        seals = f"seal {self.first.number}"
        if self.count > 1:
            seals = f"seals {self.first.number} to {self.last.number}"
        return AuditFinding(
            code="unproven",
            number=self.first.number,
            sentence=f"Of {entries} {seals}, one or the other was changed or put elsewhere, "
            "or sealed under a key that isn't given.",
        )


class _Chain:
    """What must come next, as the seals go by."""

    def __init__(self, keys: Iterable[str | bytes]) -> None:
        self.keys = list(keys)
        self.next_number = 1
        self.before: list[str] | None = [""]
        """What the next seal may stand on: the last digest, then what it should be if it isn't
        that; None where nobody knows."""
        self.doubt: _Doubt | None = None

    def link(self, seal: AuditSeal, entry: Mapping[str, Any] | None) -> Iterator[AuditFinding]:
        """Take the next seal."""
        if seal.number < 1:
            yield AuditFinding(
                code="seal_changed",
                number=seal.number,
                sentence=f"Seal {seal.number}, of entry {seal.entry_pk}, is none of the chain.",
            )
            return
        if seal.number != self.next_number:
            yield from self.end()
            yield self._missing(seal)
            self.before = None
        self.next_number = seal.number + 1
        if entry is None:
            yield from self.end()
            yield AuditFinding(
                code="deleted",
                number=seal.number,
                sentence=f"Entry {seal.entry_pk}, of seal {seal.number}, was deleted.",
            )
            self.before = [seal.digest]
        elif self.before is None:
            self.before = [seal.digest]
        else:
            yield from self._compare(seal, entry, self.before)

    def end(self) -> Iterator[AuditFinding]:
        """Say what is still in doubt."""
        if self.doubt is not None:
            yield self.doubt.unproven()
        self.doubt = None

    def _compare(
        self, seal: AuditSeal, entry: Mapping[str, Any], before: list[str]
    ) -> Iterator[AuditFinding]:
        fitting = next((base for base in before if self._fits(seal, entry, base)), None)
        if fitting is None:
            if self.doubt is None:
                self.doubt = _Doubt(seal, seal, named=[seal.entry_pk])
            else:
                self.doubt.add(seal)
            self.before = [
                seal.digest,
                *(_digest(key, before[0], seal.created_at, entry) for key in self.keys),
            ]
            return
        if self.doubt is not None:
            yield self.doubt.solved(is_digest_true=fitting == before[0])
        self.doubt = None
        self.before = [seal.digest]

    def _fits(self, seal: AuditSeal, entry: Mapping[str, Any], before: str) -> bool:
        for key in self.keys:
            if constant_time_compare(_digest(key, before, seal.created_at, entry), seal.digest):
                if key is not self.keys[0]:  # its neighbours will be of the same
                    self.keys.remove(key)
                    self.keys.insert(0, key)
                return True
        return False

    def _missing(self, seal: AuditSeal) -> AuditFinding:
        first, last = self.next_number, seal.number - 1
        are_gone = f"Seal {first} is gone" if first == last else f"Seals {first} to {last} are gone"
        return AuditFinding(
            code="seals_missing",
            number=first,
            sentence=f"{are_gone}; so entry {seal.entry_pk}, of the next seal, can't be checked.",
        )


def _digest(key: str | bytes, before: str, sealed_at: datetime, entry: Mapping[str, Any]) -> str:
    """The keyed hash over the former digest, the seal's time and every column of the entry."""
    columns = {name: entry[name] for name in SEALED}
    columns["created_at"] = written(columns["created_at"])
    sealed = json.dumps([before, written(sealed_at), columns], sort_keys=True)
    return salted_hmac("chatmemory.seal", sealed, secret=key, algorithm="sha256").hexdigest()


aseal_audit = in_pool(seal_audit)
aaudit_state = in_pool(audit_state)
