"""Where state lives: the log (segments named by manifests) is the truth, a replica on each host is a cache of it.

codec: Python values to bytes. storage: objects with create-if-absent, on disk or S3. segment: a sorted file of entries.
manifest: what makes an epoch exist. replica: LMDB, follows the log. folding: deltas into snapshots, and collection.
Nothing here knows Spark or what a computation does.
"""
