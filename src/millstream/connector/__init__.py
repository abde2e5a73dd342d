"""The connector: how bytes leave a pipeline for a program outside it, exactly once, over TCP and in two phases.

The wire protocol is that of Wallaroo's connectors, version 3, byte for byte. `messages` and `codec` are the vocabulary of both roles.

Pure (no sockets, files, threads or clock): `messages`, `codec`. What they decide is tested without either end being there.
"""
