"""For tests of other projects: tools for your project's tests, and the contract of a memory.

`chatmemory.testing.cases`, `.plugin` and `.sockets` are for a Django project that uses the app.
`chatmemory.testing.contract` needs pytest and nothing else: no Django, no LangChain.
"""
