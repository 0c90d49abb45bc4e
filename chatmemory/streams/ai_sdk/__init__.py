"""The UI message stream of the AI SDK (`ai` 7), as `useChat` for React, Vue and Svelte reads it.

Its specification: https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol.
"""
