"""Streams over HTTP for front ends of other projects, and for clients without websockets.

An entry point like `api`, whose login, limits and errors it uses. It stores nothing of its own: it
sends turns by the same services, and shows their rows and streamed text as sockets do.
"""
