"""How do bytes leave a pipeline for a program outside it, exactly once? The sink's side of the connector, and the worker that talks to it.

    protocol/       pure: both ends' sessions, points of reference, the transaction log, names, counters
    outputs/        where a worker's bytes end up: the contract, and three that keep it
    server          the sink server: listens, lets workers in, and carries out what they say
    connection      one accepted socket, and how it ends
    name_registry   who has a worker's name, and who has left it
    console         what a sink says while it runs
    worker          the client: a worker's connection to any sink

It must not know the source's side, pipelines, epochs or Spark: a sink serves any program that speaks the protocol.
"""
