"""Imports of chats from ChatGPT, Claude, Open WebUI and LibreChat. An optional app."""
