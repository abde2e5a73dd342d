"""Where does state live? The log (segments named by manifests) is the truth, a replica on each host is a cache of it.

    codec, extensions, sameness    Python values to bytes, types that msgpack lacks, and whether a value comes back equal
    storage, prefixed, memory, formats
                                   objects with create-if-absent, on disk, in S3 or in memory; versions of what is in them
    durable                        locks on folders; files that are written, synced and replaced whole
    segment, blocks                a sorted file of entries, parts of many
    framing                        frames of a log on disk: a torn end, or damage
    parcel, part                   stored productions; what a task has staged at a sink
    manifest, runs                 what makes an epoch exist, and who may write it
    longkeys                       keys that are longer than LMDB's
    replica, folding               LMDB that follows the log; deltas into snapshots, and collection
    reader, rows                   committed state as of an epoch, and what it is made of
    stats, alive                   what parts say of themselves; a driver's signs of life

Nothing here knows Spark, or what a computation does.
"""
