"""What do programs say to each other? `service.proto`, and what is generated from it by `scripts/protos.sh`.

    service_pb2    generated; in git, and a test compares it with what the script makes

It must not know anything else.
"""
