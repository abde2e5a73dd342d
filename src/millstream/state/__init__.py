"""Where does state live? The log (segments named by manifests) is the truth, a state cache on each host is a cache of it.

    codec, extensions              Python values to bytes, and whether they come back equal; types that msgpack lacks
    storage, memory_storage        objects with create-if-absent: on disk or in S3, below a prefix; in memory
    durable                        locks on folders; files that are written, synced and replaced whole
    formats                        versions of what is in a checkpoint
    segment, blocks                a sorted file of entries, and parts of many
    framing                        frames of a log on disk: a torn end, or damage
    manifest, manifest_log         what an epoch has committed, and what makes it exist
    fencing                        which run owns a checkpoint
    compaction, gc                 many segments into few; objects that no manifest names
    state_cache, longkeys          LMDB that follows the log; keys that are longer than LMDB's
    cache_cleanup                  what may be removed from a host
    reader, queries                committed state as of an epoch, and what can be asked of it
    checkpoint_copy                a copy of a checkpoint beside a run
    heartbeat                      what a run says of itself, and its driver's signs of life

It must not know Spark, nor what a computation does.
"""
