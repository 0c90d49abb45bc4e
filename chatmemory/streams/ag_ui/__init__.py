"""AG-UI 1.0, as `HttpAgent` of `@ag-ui/client` and `useChat` of TanStack AI read it.

Its specification: https://docs.ag-ui.com. It has no way to resume a run: the GET requests are those
of TanStack AI.

A run is found again without a table: the client_id of its turn ends with a mark of the run's id
(Note [Runs] in sending.py), and only turns are searched that wait, run or have just ended. Where
the server names a run, its id is `<client_id of the turn>@<key of the session>`.

Neither client marks an edit or a regenerated reply: they repeat the user's message with a new run.
So a message whose id is stored already, by another run, is a new version of it.
"""
