from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Level(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LINEARIZABLE: _ClassVar[Level]
    SESSION: _ClassVar[Level]
    BOUNDED: _ClassVar[Level]
    AS_OF: _ClassVar[Level]

class Form(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    BYTES: _ClassVar[Form]
    JSON: _ClassVar[Form]

class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NONE: _ClassVar[Reason]
    BAD_NODE: _ClassVar[Reason]
    NOT_READY: _ClassVar[Reason]
    BUSY: _ClassVar[Reason]
    TOO_LARGE: _ClassVar[Reason]
    CONFLICT: _ClassVar[Reason]
    STALE: _ClassVar[Reason]
    SESSION_EXPIRED: _ClassVar[Reason]
    UNAUTHENTICATED: _ClassVar[Reason]
    REFUSED: _ClassVar[Reason]
    UNKNOWN_OUTCOME: _ClassVar[Reason]
    DAMAGED: _ClassVar[Reason]
    FENCED: _ClassVar[Reason]
LINEARIZABLE: Level
SESSION: Level
BOUNDED: Level
AS_OF: Level
BYTES: Form
JSON: Form
NONE: Reason
BAD_NODE: Reason
NOT_READY: Reason
BUSY: Reason
TOO_LARGE: Reason
CONFLICT: Reason
STALE: Reason
SESSION_EXPIRED: Reason
UNAUTHENTICATED: Reason
REFUSED: Reason
UNKNOWN_OUTCOME: Reason
DAMAGED: Reason
FENCED: Reason

class Header(_message.Message):
    __slots__ = ("table", "partition", "term", "session", "seq", "level", "seen", "max_age_ms", "complete_to", "as_of", "done", "form")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_TO_FIELD_NUMBER: _ClassVar[int]
    AS_OF_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FORM_FIELD_NUMBER: _ClassVar[int]
    table: str
    partition: int
    term: int
    session: bytes
    seq: int
    level: Level
    seen: int
    max_age_ms: int
    complete_to: int
    as_of: int
    done: int
    form: Form
    def __init__(self, table: _Optional[str] = ..., partition: _Optional[int] = ..., term: _Optional[int] = ..., session: _Optional[bytes] = ..., seq: _Optional[int] = ..., level: _Optional[_Union[Level, str]] = ..., seen: _Optional[int] = ..., max_age_ms: _Optional[int] = ..., complete_to: _Optional[int] = ..., as_of: _Optional[int] = ..., done: _Optional[int] = ..., form: _Optional[_Union[Form, str]] = ...) -> None: ...

class Position(_message.Message):
    __slots__ = ("partition", "term", "lsn", "age_ms", "low_watermark", "epoch")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    LOW_WATERMARK_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    term: int
    lsn: int
    age_ms: int
    low_watermark: int
    epoch: int
    def __init__(self, partition: _Optional[int] = ..., term: _Optional[int] = ..., lsn: _Optional[int] = ..., age_ms: _Optional[int] = ..., low_watermark: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class UpsertRequest(_message.Message):
    __slots__ = ("header", "keys", "values", "expect", "txn")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    header: Header
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    expect: _containers.RepeatedScalarFieldContainer[int]
    txn: str
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., expect: _Optional[_Iterable[int]] = ..., txn: _Optional[str] = ...) -> None: ...

class RemoveRequest(_message.Message):
    __slots__ = ("header", "keys", "expect", "txn")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    EXPECT_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    header: Header
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    expect: _containers.RepeatedScalarFieldContainer[int]
    txn: str
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., expect: _Optional[_Iterable[int]] = ..., txn: _Optional[str] = ...) -> None: ...

class WriteReply(_message.Message):
    __slots__ = ("at", "again")
    AT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    at: Position
    again: bool
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., again: bool = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("header", "keys")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    header: Header
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class GetReply(_message.Message):
    __slots__ = ("at", "values", "versions")
    AT_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    at: Position
    values: _containers.RepeatedScalarFieldContainer[bytes]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., values: _Optional[_Iterable[bytes]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class CallRequest(_message.Message):
    __slots__ = ("header", "function", "key", "argument")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ARGUMENT_FIELD_NUMBER: _ClassVar[int]
    header: Header
    function: str
    key: bytes
    argument: bytes
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., function: _Optional[str] = ..., key: _Optional[bytes] = ..., argument: _Optional[bytes] = ...) -> None: ...

class CallReply(_message.Message):
    __slots__ = ("at", "result", "again")
    AT_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    at: Position
    result: bytes
    again: bool
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., result: _Optional[bytes] = ..., again: bool = ...) -> None: ...

class DecideRequest(_message.Message):
    __slots__ = ("header", "decision", "txns", "fence", "keep")
    class Decision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHECK: _ClassVar[DecideRequest.Decision]
        COMMIT: _ClassVar[DecideRequest.Decision]
        DROP: _ClassVar[DecideRequest.Decision]
        SWEEP: _ClassVar[DecideRequest.Decision]
    CHECK: DecideRequest.Decision
    COMMIT: DecideRequest.Decision
    DROP: DecideRequest.Decision
    SWEEP: DecideRequest.Decision
    HEADER_FIELD_NUMBER: _ClassVar[int]
    DECISION_FIELD_NUMBER: _ClassVar[int]
    TXNS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    header: Header
    decision: DecideRequest.Decision
    txns: _containers.RepeatedScalarFieldContainer[str]
    fence: int
    keep: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., decision: _Optional[_Union[DecideRequest.Decision, str]] = ..., txns: _Optional[_Iterable[str]] = ..., fence: _Optional[int] = ..., keep: _Optional[_Iterable[str]] = ...) -> None: ...

class DecideReply(_message.Message):
    __slots__ = ("at", "rows")
    AT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    at: Position
    rows: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., rows: _Optional[_Iterable[int]] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("header", "start", "end", "prefix", "limit", "keys_only", "part")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    KEYS_ONLY_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    header: Header
    start: bytes
    end: bytes
    prefix: bytes
    limit: int
    keys_only: bool
    part: str
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., prefix: _Optional[bytes] = ..., limit: _Optional[int] = ..., keys_only: bool = ..., part: _Optional[str] = ...) -> None: ...

class ScanReply(_message.Message):
    __slots__ = ("at", "keys", "values", "versions")
    AT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    at: Position
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    versions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., versions: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("header", "keys", "prefix", "after")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    header: Header
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    prefix: bytes
    after: int
    def __init__(self, header: _Optional[_Union[Header, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., prefix: _Optional[bytes] = ..., after: _Optional[int] = ...) -> None: ...

class WatchReply(_message.Message):
    __slots__ = ("at", "kind", "keys", "values", "versions", "first")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHANGES: _ClassVar[WatchReply.Kind]
        SNAPSHOT: _ClassVar[WatchReply.Kind]
        MARK: _ClassVar[WatchReply.Kind]
        RESET: _ClassVar[WatchReply.Kind]
    CHANGES: WatchReply.Kind
    SNAPSHOT: WatchReply.Kind
    MARK: WatchReply.Kind
    RESET: WatchReply.Kind
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    at: Position
    kind: WatchReply.Kind
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    versions: _containers.RepeatedScalarFieldContainer[int]
    first: int
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., kind: _Optional[_Union[WatchReply.Kind, str]] = ..., keys: _Optional[_Iterable[bytes]] = ..., values: _Optional[_Iterable[bytes]] = ..., versions: _Optional[_Iterable[int]] = ..., first: _Optional[int] = ...) -> None: ...

class Partition(_message.Message):
    __slots__ = ("id", "table", "start", "end", "term", "primary", "in_sync", "state", "lsn", "node", "point", "reason")
    ID_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_FIELD_NUMBER: _ClassVar[int]
    IN_SYNC_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LSN_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    id: int
    table: str
    start: bytes
    end: bytes
    term: int
    primary: str
    in_sync: _containers.RepeatedScalarFieldContainer[str]
    state: str
    lsn: int
    node: str
    point: str
    reason: str
    def __init__(self, id: _Optional[int] = ..., table: _Optional[str] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., term: _Optional[int] = ..., primary: _Optional[str] = ..., in_sync: _Optional[_Iterable[str]] = ..., state: _Optional[str] = ..., lsn: _Optional[int] = ..., node: _Optional[str] = ..., point: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class RouteRequest(_message.Message):
    __slots__ = ("table", "start", "limit")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    table: str
    start: bytes
    limit: int
    def __init__(self, table: _Optional[str] = ..., start: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class AddPartitionRequest(_message.Message):
    __slots__ = ("table", "id", "start", "end")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    table: str
    id: int
    start: bytes
    end: bytes
    def __init__(self, table: _Optional[str] = ..., id: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class RemovePartitionRequest(_message.Message):
    __slots__ = ("table", "id", "start", "end")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    table: str
    id: int
    start: bytes
    end: bytes
    def __init__(self, table: _Optional[str] = ..., id: _Optional[int] = ..., start: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class ListPartitionsRequest(_message.Message):
    __slots__ = ("table", "node")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    table: str
    node: str
    def __init__(self, table: _Optional[str] = ..., node: _Optional[str] = ...) -> None: ...

class PartitionList(_message.Message):
    __slots__ = ("partitions", "version")
    PARTITIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    partitions: _containers.RepeatedCompositeFieldContainer[Partition]
    version: int
    def __init__(self, partitions: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., version: _Optional[int] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("partition", "path")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    path: str
    def __init__(self, partition: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("at", "path", "rows", "bytes")
    AT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    at: Position
    path: str
    rows: int
    bytes: int
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., path: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("partition", "path")
    PARTITION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    partition: int
    path: str
    def __init__(self, partition: _Optional[int] = ..., path: _Optional[str] = ...) -> None: ...

class RestoreReply(_message.Message):
    __slots__ = ("at", "rows")
    AT_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    at: Position
    rows: int
    def __init__(self, at: _Optional[_Union[Position, _Mapping]] = ..., rows: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("reason", "owners", "retry_after_ms", "versions", "text", "counted")
    REASON_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    reason: Reason
    owners: _containers.RepeatedCompositeFieldContainer[Partition]
    retry_after_ms: int
    versions: _containers.RepeatedScalarFieldContainer[int]
    text: str
    counted: bool
    def __init__(self, reason: _Optional[_Union[Reason, str]] = ..., owners: _Optional[_Iterable[_Union[Partition, _Mapping]]] = ..., retry_after_ms: _Optional[int] = ..., versions: _Optional[_Iterable[int]] = ..., text: _Optional[str] = ..., counted: bool = ...) -> None: ...
