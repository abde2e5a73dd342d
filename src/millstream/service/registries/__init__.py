"""What is desired: which partitions there are to be, and who is to serve them?

    base       the contract, and what a change of the desired state does
    storage    a folder or an object store: every change is an object that is created if absent

It must not know partitions, logs or gRPC.
"""
