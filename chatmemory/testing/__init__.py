"""For your tests: the contract of a memory, to which any store can be held.

`chatmemory.testing.contract` needs pytest and nothing else: no Django, no LangChain.
"""
