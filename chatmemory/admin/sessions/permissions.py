"""The permissions of the pages and actions of sessions."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest


class SessionPermissions:
    """One method for each permission, which a host may override to restrict single sessions.

    Without a session a method returns whether the operator has the permission for any.
    """

    def has_view_transcript_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.view_transcript")

    def has_view_unmasked_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.view_unmasked")

    def has_trim_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.trim_history")

    def has_clear_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.clear_history")

    def has_purge_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.purge_history")

    def has_restore_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.restore_history")

    def has_redact_message_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.redact_message")

    def has_stop_turn_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.stop_turn")

    def has_archive_session_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.archive_session")

    def has_hold_session_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.hold_session")

    def has_tag_session_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.tag_session")

    def has_note_session_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.note_session")

    def has_export_history_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.export_history")

    def has_erase_person_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("chatmemory.erase_person")
