"""What a page of the AI SDK shows after a stream, by the rules of its reader."""

from __future__ import annotations

from typing import Any

from tests.streams.front import Chunk

PASSED = {
    "start",
    "finish",
    "finish-step",
    "message-metadata",
    "error",
    "data-progress",
    "data-queue",
}


def shown(chunks: list[Chunk]) -> list[dict[str, Any]]:
    """Return the parts of the reply. Fails at what the reader refuses."""
    parts: list[dict[str, Any]] = []
    open_parts: dict[tuple[str, str], dict[str, Any]] = {}
    for chunk in chunks:
        kind, _, state = str(chunk["type"]).partition("-")
        match chunk["type"]:
            case "start-step":
                parts.append({"type": "step-start"})
            case "reset-step":
                last = max(at for at, part in enumerate(parts) if part["type"] == "step-start")
                del parts[last + 1 :]
                open_parts.clear()
            case "text-start" | "reasoning-start":
                part = {"type": kind, "text": "", "state": "done"}
                parts.append(part)
                open_parts[kind, chunk["id"]] = part
            case "text-delta" | "reasoning-delta":
                open_parts[kind, chunk["id"]]["text"] += chunk["delta"]
            case "text-end" | "reasoning-end":
                del open_parts[kind, chunk["id"]]
            case "tool-input-available":
                names = ("toolName", "toolCallId", "input", "providerExecuted")
                assert all(part.get("toolCallId") != chunk["toolCallId"] for part in parts)
                given = {name: chunk[name] for name in names}
                parts.append({"type": "dynamic-tool", "state": "input-available", **given})
            case "tool-output-available" | "tool-output-error":
                [part] = [each for each in parts if each.get("toolCallId") == chunk["toolCallId"]]
                name = "output" if chunk["type"].endswith("available") else "errorText"
                part |= {"state": str(chunk["type"])[5:], name: chunk[name]}
            case "data-asks":
                parts.append(chunk)
            case other:
                assert other in PASSED, f"an unknown chunk: {chunk} {state}"
    assert not open_parts, "a text did not end"
    return parts
