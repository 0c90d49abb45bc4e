"""The functions and types that a host may call. The reference is docs/reference/services.md."""

from __future__ import annotations

from chatmemory.access.actors import SERVER, Actor, user_scope
from chatmemory.access.logins import Login
from chatmemory.access.tickets import aissue_ticket, ause_ticket, issue_ticket, use_ticket
from chatmemory.access.visitors import (
    aauthenticate_visitor,
    acreate_visitor,
    authenticate_visitor,
    create_visitor,
)
from chatmemory.access.visits import Visit
from chatmemory.services.adoption import adopt_visitor, offer_adoption
from chatmemory.services.erasure.erasure import Erased, erase_person, preview_erasure
from chatmemory.services.erasure.past_erasures import replay_erasures
from chatmemory.services.erasure.stored_data import count_stored_data
from chatmemory.services.messages import Appended, aappend_messages, append_messages
from chatmemory.services.notes import add_note, delete_note
from chatmemory.services.redaction.find_text import FoundText, find_text
from chatmemory.services.redaction.redaction import redact_message, redact_turn
from chatmemory.services.removal.hide import (
    Preview,
    aclear_session,
    clear_session,
    preview_removal,
    preview_trim,
    purge_session,
    trim_session,
)
from chatmemory.services.removal.holds import (
    archive_session,
    hold_session,
    release_session,
    unarchive_session,
)
from chatmemory.services.removal.restore import (
    Removed,
    Restoration,
    list_removed,
    preview_restore,
    restore_session,
)
from chatmemory.services.retention.accounts import deleting_users
from chatmemory.services.sessions import (
    aget_session,
    alist_sessions,
    aopen_session,
    aread_history,
    aread_page,
    aupdate_session,
    get_session,
    list_sessions,
    open_session,
    read_history,
    read_page,
    sessions_of,
    update_session,
)
from chatmemory.services.tags import tag_session, untag_session
from chatmemory.services.transfers.exports import Export, abegin_export, begin_export
from chatmemory.services.turns.admission import Admitted, aadmit_turn, admit_turn
from chatmemory.services.turns.before_send import Sending
from chatmemory.services.turns.feedback import aset_feedback, set_feedback
from chatmemory.services.turns.states import (
    LiveTurn,
    TurnState,
    aget_turn,
    alist_turns,
    get_turn,
    list_turns,
)
from chatmemory.services.turns.stops import astop_turn, stop_turn

__all__ = [
    "SERVER",
    "Actor",
    "Admitted",
    "Appended",
    "Erased",
    "Export",
    "FoundText",
    "LiveTurn",
    "Login",
    "Preview",
    "Removed",
    "Restoration",
    "Sending",
    "TurnState",
    "Visit",
    "aadmit_turn",
    "aappend_messages",
    "aauthenticate_visitor",
    "abegin_export",
    "aclear_session",
    "acreate_visitor",
    "add_note",
    "admit_turn",
    "adopt_visitor",
    "aget_session",
    "aget_turn",
    "aissue_ticket",
    "alist_sessions",
    "alist_turns",
    "aopen_session",
    "append_messages",
    "archive_session",
    "aread_history",
    "aread_page",
    "aset_feedback",
    "astop_turn",
    "aupdate_session",
    "ause_ticket",
    "authenticate_visitor",
    "begin_export",
    "clear_session",
    "count_stored_data",
    "create_visitor",
    "delete_note",
    "deleting_users",
    "erase_person",
    "find_text",
    "get_session",
    "get_turn",
    "hold_session",
    "issue_ticket",
    "list_removed",
    "list_sessions",
    "list_turns",
    "offer_adoption",
    "open_session",
    "preview_erasure",
    "preview_removal",
    "preview_restore",
    "preview_trim",
    "purge_session",
    "read_history",
    "read_page",
    "redact_message",
    "redact_turn",
    "release_session",
    "replay_erasures",
    "restore_session",
    "sessions_of",
    "set_feedback",
    "stop_turn",
    "tag_session",
    "trim_session",
    "unarchive_session",
    "untag_session",
    "update_session",
    "use_ticket",
    "user_scope",
]
