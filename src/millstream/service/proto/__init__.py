"""What do programs say to each other? `service.proto`, and what is generated from it by `scripts/protos.sh`.

    service_pb2    generated; in git, and a test compares it with what the script makes

It must not know anything else. Modules that need gRPC import it from here, so one message says that it is missing.
"""

from millstream.extras import needed

with needed("the state service"):
    import google.protobuf  # noqa: F401
    import grpc
    import grpc.aio

__all__ = ["grpc"]
