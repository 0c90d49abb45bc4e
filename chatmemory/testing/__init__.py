"""Tools for the tests of other projects, and the contract tests of a chat memory.

`chatmemory.testing.cases`, `.plugin` and `.sockets` are for a Django project that uses the app.
`chatmemory.testing.contract` requires only pytest, neither Django nor LangChain.
"""
