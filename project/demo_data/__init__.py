"""The example data of the demo: weeks of made-up conversations of a shop, and of their operators.

`texts` writes the texts, `rows` the rows of one conversation, `conversations` all of them,
`operators` what operators did. `example_data` stores everything once.
"""
