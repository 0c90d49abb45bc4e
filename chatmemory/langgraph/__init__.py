"""A checkpoint saver for LangGraph, whose threads follow every removal of the core.

`from chatmemory.langgraph.saver import DjangoSaver`; see docs/howto/langgraph.md. This module
imports nothing, since Django loads it at start-up and LangGraph takes over a second.
"""
