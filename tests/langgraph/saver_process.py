"""Run a graph with our saver, in processes that are killed: see tests/killed.py.

The arguments of a run are `THREAD TEXT DURABILITY`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import django

from tests.killed import serve

if __name__ == "__main__":
    django.setup()
    graphs: Any = import_module("tests.langgraph.graphs")
    saver = import_module("chatmemory.langgraph.saver").DjangoSaver(scope="server")

    def run(thread: str, text: str, durability: str) -> None:
        graph, config = graphs.graph_of(saver), graphs.at(thread)
        graph.invoke(graphs.input_of(text), config, durability=durability)

    serve(run)
