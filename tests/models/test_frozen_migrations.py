"""A migration never changes: databases have already applied it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

import chatmemory

ROOT = Path(chatmemory.__file__).parent

FROZEN = {
    "migrations/0001_initial.py": (
        "f49a66313a20aa9e921854217bdc19fa6db1ed46e213accac57804f70599583e"
    ),
    "langgraph/migrations/0001_initial.py": (
        "1069c7d34317fee19f12256ccd684f1c99c59ed75d51344a2581254c504bb320"
    ),
    "langgraph/migrations/0002_turns_and_states.py": (
        "f79d687aec74ce12b3c3a396370949dbf42c693965b23752c58a5848c839b947"
    ),
    "langgraph/migrations/0003_known_messages.py": (
        "bbcfa3a1c1564ec04a1cee5436b64d7e3d48814be9ba3b9e849720991d6eee75"
    ),
    "search/migrations/0001_initial.py": (
        "e0b317dc620793e347b37b3761d98425d0b77af6e2d9dc2571bf09dc128afc27"
    ),
    "statistics/migrations/0001_initial.py": (
        "d1a9c0c1fa2bdbd3c577400f4092a1f14966ccf67a8865500d7a04a16f101709"
    ),
}
"""The SHA-256 of each migration. Add an entry for a new one; never change an entry."""

ADVICE = """\
{name} has changed. Databases have applied it, and Django does not apply it again. Restore the file,
and add the next migration with `manage.py makemigrations`. Old and new code run beside one another
during an update, so a changed column takes several releases:
1. add the new column, nullable or with a db_default, and write both columns;
2. fill it in a data migration of its own, in chunks, and read it;
3. stop using the old column: null=True or a db_default, so that rows can be stored without it;
4. remove the old column.
State in CHANGELOG.md which tables the migration locks, and for how long. Then add its hash to
FROZEN."""


def migrations() -> dict[str, Path]:
    """Return all migrations of the core and of the optional apps, by their paths."""
    found = sorted(ROOT.rglob("migrations/[0-9]*.py"))
    return {str(file.relative_to(ROOT)): file for file in found}


@pytest.mark.parametrize("name", FROZEN)
def test_a_migration_never_changes(name):
    found = hashlib.sha256((ROOT / name).read_bytes()).hexdigest()
    assert found == FROZEN[name], ADVICE.format(name=name)


def test_each_migration_is_frozen():
    unknown = {
        name: hashlib.sha256(file.read_bytes()).hexdigest()
        for name, file in migrations().items()
        if name not in FROZEN
    }
    assert unknown == {}, "Add these entries to FROZEN."
