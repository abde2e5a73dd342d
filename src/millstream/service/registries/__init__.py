"""What is desired: which partitions there are to be, and who is to serve them?

    desired_state    the desired state, its changes, and the contract of a registry
    object_registry  a folder or an object store: every change is an object that is created if absent

It must not know partitions, logs or gRPC.
"""
