"""Where state lives: the log (segments named by manifests) is the truth, a replica on each host is a cache of it.

codec: Python values to bytes. storage: objects with create-if-absent, on disk or S3. segment: a sorted file of entries; blocks: parts of many.
parcel: stored productions. manifest: what makes an epoch exist. runs: who may write one. replica: LMDB, follows the log. folding: deltas into
snapshots, and collection. reader: committed state as of an epoch; rows: what it is made of. memory: a storage for tests. alive: a driver's signs of life.
Nothing here knows Spark or what a computation does.
"""
