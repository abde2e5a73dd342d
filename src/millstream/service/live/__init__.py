"""What does a running pipeline know? Its committed state, followed epoch by epoch and served.

    tailer       tails the manifests: applies the next epoch in a thread, and pins it
    epochs       the newest epochs, each pinned whole
    history      what each epoch changed, for watchers
    watch        one watcher: a snapshot, changes, marks
    row_formats  what can be read of an epoch: rows, timers, holds, MapStates; as bytes or JSON
    backend      the data plane's calls (levels, positions, reads), and the gRPC server over them

Read them in this order. It must not know how the tables of a node are kept.
"""
