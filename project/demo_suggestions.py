"""The messages that the demo's page of a new chat offers, and which `project.demo_bot` knows."""

from __future__ import annotations

MEMORY = "My name is Anna Weber, and my dog is called Rex."
STORY = "Tell me a long story."
RICH = "Show me a table and some code."
TOOL = "Will I need an umbrella in Lisbon?"
QUESTION = "Book a table for tonight."
SLOW = "Take your time, and think first."
ERROR = "Fail in the middle of a reply."

SHOP = [
    "Where is my order?",
    "How long does delivery take?",
    "How do I return something?",
    "What are your opening hours?",
    "I want to talk to a person.",
]
"""Those of the widget on the page of the shop."""

SUGGESTIONS = [MEMORY, STORY, RICH, TOOL, QUESTION, SLOW, ERROR]
