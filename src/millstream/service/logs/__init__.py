"""How is a write made durable, and who may write? The logs of the state service, behind one contract.

    log_contract   L1 to L7, which every log keeps
    disk           one log per node, shared by its partitions: preallocated files, one fsync for many writes
    wal            the files of the disk log: their format, and what a crash leaves of them
    none           no log, for a store that is durable by itself
    objects        slots that are created if absent, in a folder or an object store: another node can take over
    object_slots   what such a slot holds, and which of them count

It must not know partitions, tables or gRPC.
"""

from millstream.service.logs.disk import disk
from millstream.service.logs.none import none
from millstream.service.logs.objects import objects

__all__ = ["disk", "none", "objects"]
