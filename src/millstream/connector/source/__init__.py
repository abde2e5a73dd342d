"""How do messages of other programs come into a pipeline, exactly once? The source's side of the connector, and the client that pushes.

    protocol/     pure: both ends' tables and sessions, streams with their ids and watermarks
    server        the server of a source: one event loop, everybody who pushes, and the intake behind it
    push          the pushing client
    push_console  what `millstream push` says while it waits

It must not know the sink's side, epochs or Spark: it is told what is committed.
"""
