"""Checkpoints as lines of JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from langchain_core.messages import BaseMessage, message_to_dict
from langgraph.checkpoint.base import CheckpointTuple
from pydantic import BaseModel


def line_of(found: CheckpointTuple) -> str:
    """Return a checkpoint with its values and pending writes as a line of JSON.

    Messages have LangChain's own form, bytes are in Base64, and what JSON has no form for is text.
    """
    configurable, checkpoint = found.config["configurable"], found.checkpoint
    line = {
        "thread": configurable["thread_id"],
        "namespace": configurable["checkpoint_ns"],
        "checkpoint": checkpoint["id"],
        "at": checkpoint["ts"],
        "metadata": found.metadata,
        "values": checkpoint["channel_values"],
        "writes": [
            {"task": task, "channel": channel, "value": value}
            for task, channel, value in found.pending_writes or ()
        ],
    }
    return json.dumps(_plain(line), allow_nan=False)


def _plain(value: object) -> Any:
    """Return a value of which JSON has a form."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case BaseMessage():
            return _plain(message_to_dict(value))
        case BaseModel():
            return _plain(value.model_dump())
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_plain(each) for each in value]
        case _ if is_dataclass(value) and not isinstance(value, type):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return str(value)
