"""What does a running pipeline know? Its committed state, followed epoch by epoch and served.

    follow      looks for the next epoch, applies it in a thread, pins it
    epochs      the newest epochs, each pinned whole
    history     what each epoch changed, for those who watch
    watch       one watcher: a snapshot, changes, marks
    parts       what can be asked of an epoch: rows, timers, holds, MapStates; as bytes or JSON
    portions    long answers in messages, without keeping the event loop
    serve       the backend of the data plane: levels, positions, calls
    server      the data plane over it: a process, or a thread beside a run

Read them in this order. It must not know how the tables of a node are kept.
"""
