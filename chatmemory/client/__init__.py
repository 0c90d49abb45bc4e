"""Async clients of the websocket protocol and of the REST API, and a terminal."""

from __future__ import annotations

from chatmemory.client.chat import Chat as Chat
from chatmemory.client.chat import Events as Events
from chatmemory.client.chat import connect as connect
from chatmemory.client.events import ClientError as ClientError
from chatmemory.client.events import Closed as Closed
from chatmemory.client.events import Event as Event
from chatmemory.client.events import Frame as Frame
from chatmemory.client.events import Lost as Lost
from chatmemory.client.events import Message as Message
from chatmemory.client.events import NoReply as NoReply
from chatmemory.client.events import Piece as Piece
from chatmemory.client.events import Progress as Progress
from chatmemory.client.events import Refused as Refused
from chatmemory.client.events import Reset as Reset
from chatmemory.client.events import SessionChanged as SessionChanged
from chatmemory.client.events import Synced as Synced
from chatmemory.client.events import Turn as Turn
from chatmemory.client.http import ApiError as ApiError
from chatmemory.client.rest import RestClient as RestClient
