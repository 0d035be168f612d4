from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Member(_message.Message):
    __slots__ = ("role", "index", "uid")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    role: str
    index: int
    uid: str
    def __init__(self, role: _Optional[str] = ..., index: _Optional[int] = ..., uid: _Optional[str] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("member", "pid", "control_address", "bulk_address", "ready", "sources", "figures", "leaving", "callbacks")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    CONTROL_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BULK_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    CALLBACKS_FIELD_NUMBER: _ClassVar[int]
    member: Member
    pid: int
    control_address: str
    bulk_address: str
    ready: bool
    sources: _containers.RepeatedCompositeFieldContainer[Source]
    figures: PsFigures
    leaving: bool
    callbacks: bytes
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., pid: _Optional[int] = ..., control_address: _Optional[str] = ..., bulk_address: _Optional[str] = ..., ready: _Optional[bool] = ..., sources: _Optional[_Iterable[_Union[Source, _Mapping]]] = ..., figures: _Optional[_Union[PsFigures, _Mapping]] = ..., leaving: _Optional[bool] = ..., callbacks: _Optional[bytes] = ...) -> None: ...

class Source(_message.Message):
    __slots__ = ("name", "records")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    records: int
    def __init__(self, name: _Optional[str] = ..., records: _Optional[int] = ...) -> None: ...

class PsFigures(_message.Message):
    __slots__ = ("entered", "updates", "refused", "staleness", "stalest", "forming", "tables")
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    STALENESS_FIELD_NUMBER: _ClassVar[int]
    STALEST_FIELD_NUMBER: _ClassVar[int]
    FORMING_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    entered: int
    updates: int
    refused: int
    staleness: int
    stalest: int
    forming: Forming
    tables: _containers.RepeatedCompositeFieldContainer[TableUse]
    def __init__(self, entered: _Optional[int] = ..., updates: _Optional[int] = ..., refused: _Optional[int] = ..., staleness: _Optional[int] = ..., stalest: _Optional[int] = ..., forming: _Optional[_Union[Forming, _Mapping]] = ..., tables: _Optional[_Iterable[_Union[TableUse, _Mapping]]] = ...) -> None: ...

class Forming(_message.Message):
    __slots__ = ("wanted", "arrived", "awaited", "seconds")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    ARRIVED_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    wanted: int
    arrived: _containers.RepeatedScalarFieldContainer[int]
    awaited: _containers.RepeatedScalarFieldContainer[int]
    seconds: float
    def __init__(self, wanted: _Optional[int] = ..., arrived: _Optional[_Iterable[int]] = ..., awaited: _Optional[_Iterable[int]] = ..., seconds: _Optional[float] = ...) -> None: ...

class TableUse(_message.Message):
    __slots__ = ("name", "rows", "bytes", "dropped", "bound")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    DROPPED_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    dropped: int
    bound: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., dropped: _Optional[int] = ..., bound: _Optional[int] = ...) -> None: ...

class RegisterReply(_message.Message):
    __slots__ = ("incarnation", "placement", "may_end", "learning_rate")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    MAY_END_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    placement: Placement
    may_end: bool
    learning_rate: float
    def __init__(self, incarnation: _Optional[int] = ..., placement: _Optional[_Union[Placement, _Mapping]] = ..., may_end: _Optional[bool] = ..., learning_rate: _Optional[float] = ...) -> None: ...

class Placement(_message.Message):
    __slots__ = ("version", "ps", "slots")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    version: int
    ps: _containers.RepeatedCompositeFieldContainer[PsAddress]
    slots: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, version: _Optional[int] = ..., ps: _Optional[_Iterable[_Union[PsAddress, _Mapping]]] = ..., slots: _Optional[_Iterable[int]] = ...) -> None: ...

class PsAddress(_message.Message):
    __slots__ = ("index", "uid", "bulk_address")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    BULK_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    index: int
    uid: str
    bulk_address: str
    def __init__(self, index: _Optional[int] = ..., uid: _Optional[str] = ..., bulk_address: _Optional[str] = ...) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("member", "wait_seconds", "known_incarnation", "held")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_INCARNATION_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    member: Member
    wait_seconds: float
    known_incarnation: int
    held: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., known_incarnation: _Optional[int] = ..., held: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseReply(_message.Message):
    __slots__ = ("incarnation", "placement_version", "learning_rate", "task", "wait", "stop")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    placement_version: int
    learning_rate: float
    task: Task
    wait: Wait
    stop: Stop
    def __init__(self, incarnation: _Optional[int] = ..., placement_version: _Optional[int] = ..., learning_rate: _Optional[float] = ..., task: _Optional[_Union[Task, _Mapping]] = ..., wait: _Optional[_Union[Wait, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ...) -> None: ...

class Wait(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("lease", "kind", "epoch", "source", "start", "end", "minibatch", "pin", "step", "expires_seconds", "payload", "window", "order", "of_copy", "digests", "one_by_one")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    MINIBATCH_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    OF_COPY_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ONE_BY_ONE_FIELD_NUMBER: _ClassVar[int]
    lease: int
    kind: str
    epoch: int
    source: str
    start: int
    end: int
    minibatch: int
    pin: int
    step: int
    expires_seconds: float
    payload: bytes
    window: int
    order: str
    of_copy: bool
    digests: str
    one_by_one: bool
    def __init__(self, lease: _Optional[int] = ..., kind: _Optional[str] = ..., epoch: _Optional[int] = ..., source: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., minibatch: _Optional[int] = ..., pin: _Optional[int] = ..., step: _Optional[int] = ..., expires_seconds: _Optional[float] = ..., payload: _Optional[bytes] = ..., window: _Optional[int] = ..., order: _Optional[str] = ..., of_copy: _Optional[bool] = ..., digests: _Optional[str] = ..., one_by_one: _Optional[bool] = ...) -> None: ...

class ProgressRequest(_message.Message):
    __slots__ = ("member", "leases", "warnings", "stopped_training")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_TRAINING_FIELD_NUMBER: _ClassVar[int]
    member: Member
    leases: _containers.RepeatedCompositeFieldContainer[LeaseProgress]
    warnings: _containers.RepeatedCompositeFieldContainer[WorkerWarning]
    stopped_training: bool
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., leases: _Optional[_Iterable[_Union[LeaseProgress, _Mapping]]] = ..., warnings: _Optional[_Iterable[_Union[WorkerWarning, _Mapping]]] = ..., stopped_training: _Optional[bool] = ...) -> None: ...

class LeaseProgress(_message.Message):
    __slots__ = ("lease", "through", "loss_sum", "loss_steps", "skipped_records", "skipped_updates")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    LOSS_STEPS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_RECORDS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_UPDATES_FIELD_NUMBER: _ClassVar[int]
    lease: int
    through: int
    loss_sum: float
    loss_steps: int
    skipped_records: int
    skipped_updates: int
    def __init__(self, lease: _Optional[int] = ..., through: _Optional[int] = ..., loss_sum: _Optional[float] = ..., loss_steps: _Optional[int] = ..., skipped_records: _Optional[int] = ..., skipped_updates: _Optional[int] = ...) -> None: ...

class WorkerWarning(_message.Message):
    __slots__ = ("topic", "text")
    TOPIC_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    topic: str
    text: str
    def __init__(self, topic: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class ProgressReply(_message.Message):
    __slots__ = ("incarnation", "placement_version", "lost", "learning_rate")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    placement_version: int
    lost: _containers.RepeatedScalarFieldContainer[int]
    learning_rate: float
    def __init__(self, incarnation: _Optional[int] = ..., placement_version: _Optional[int] = ..., lost: _Optional[_Iterable[int]] = ..., learning_rate: _Optional[float] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("member", "lease", "last", "result")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    member: Member
    lease: int
    last: LeaseProgress
    result: bytes
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., lease: _Optional[int] = ..., last: _Optional[_Union[LeaseProgress, _Mapping]] = ..., result: _Optional[bytes] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("accepted", "reason", "incarnation")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    reason: str
    incarnation: int
    def __init__(self, accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., incarnation: _Optional[int] = ...) -> None: ...

class FailRequest(_message.Message):
    __slots__ = ("member", "kind", "message", "detail", "lease")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    member: Member
    kind: str
    message: str
    detail: str
    lease: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., detail: _Optional[str] = ..., lease: _Optional[int] = ...) -> None: ...

class FailReply(_message.Message):
    __slots__ = ("fatal",)
    FATAL_FIELD_NUMBER: _ClassVar[int]
    fatal: bool
    def __init__(self, fatal: _Optional[bool] = ...) -> None: ...

class LeaveRequest(_message.Message):
    __slots__ = ("member", "reason", "leases")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    member: Member
    reason: str
    leases: _containers.RepeatedCompositeFieldContainer[LeaseProgress]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., reason: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[LeaseProgress, _Mapping]]] = ...) -> None: ...

class LeaveReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorldRequest(_message.Message):
    __slots__ = ("member", "wait_seconds", "address", "seen", "phase", "round", "state_round", "step", "digest", "stable", "after", "done", "loss", "paused", "leaving", "copied", "unreadable", "members_known", "stopped", "difference", "evaluation_copy", "skipped_steps", "entered")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STATE_ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STABLE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    PAUSED_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    COPIED_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_KNOWN_FIELD_NUMBER: _ClassVar[int]
    STOPPED_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_COPY_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_STEPS_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    member: Member
    wait_seconds: float
    address: str
    seen: int
    phase: str
    round: Round
    state_round: Round
    step: int
    digest: int
    stable: int
    after: int
    done: _containers.RepeatedCompositeFieldContainer[LeaseRecords]
    loss: float
    paused: bool
    leaving: bool
    copied: CopiedState
    unreadable: UnreadableCheckpoint
    members_known: Round
    stopped: bool
    difference: str
    evaluation_copy: EvaluationCopy
    skipped_steps: _containers.RepeatedScalarFieldContainer[int]
    entered: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., wait_seconds: _Optional[float] = ..., address: _Optional[str] = ..., seen: _Optional[int] = ..., phase: _Optional[str] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., state_round: _Optional[_Union[Round, _Mapping]] = ..., step: _Optional[int] = ..., digest: _Optional[int] = ..., stable: _Optional[int] = ..., after: _Optional[int] = ..., done: _Optional[_Iterable[_Union[LeaseRecords, _Mapping]]] = ..., loss: _Optional[float] = ..., paused: _Optional[bool] = ..., leaving: _Optional[bool] = ..., copied: _Optional[_Union[CopiedState, _Mapping]] = ..., unreadable: _Optional[_Union[UnreadableCheckpoint, _Mapping]] = ..., members_known: _Optional[_Union[Round, _Mapping]] = ..., stopped: _Optional[bool] = ..., difference: _Optional[str] = ..., evaluation_copy: _Optional[_Union[EvaluationCopy, _Mapping]] = ..., skipped_steps: _Optional[_Iterable[int]] = ..., entered: _Optional[int] = ...) -> None: ...

class CopiedState(_message.Message):
    __slots__ = ("cut", "step", "pause_seconds", "shard", "done", "writers")
    CUT_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    WRITERS_FIELD_NUMBER: _ClassVar[int]
    cut: int
    step: int
    pause_seconds: float
    shard: WrittenShard
    done: _containers.RepeatedCompositeFieldContainer[LeaseRecords]
    writers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cut: _Optional[int] = ..., step: _Optional[int] = ..., pause_seconds: _Optional[float] = ..., shard: _Optional[_Union[WrittenShard, _Mapping]] = ..., done: _Optional[_Iterable[_Union[LeaseRecords, _Mapping]]] = ..., writers: _Optional[_Iterable[str]] = ...) -> None: ...

class EvaluationCopy(_message.Message):
    __slots__ = ("step", "changes")
    STEP_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    step: int
    changes: int
    def __init__(self, step: _Optional[int] = ..., changes: _Optional[int] = ...) -> None: ...

class WrittenShard(_message.Message):
    __slots__ = ("file", "size", "crc32", "error")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    file: str
    size: int
    crc32: int
    error: str
    def __init__(self, file: _Optional[str] = ..., size: _Optional[int] = ..., crc32: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class UnreadableCheckpoint(_message.Message):
    __slots__ = ("cut", "error")
    CUT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    cut: int
    error: str
    def __init__(self, cut: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("incarnation", "number")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    number: int
    def __init__(self, incarnation: _Optional[int] = ..., number: _Optional[int] = ...) -> None: ...

class LeaseRecords(_message.Message):
    __slots__ = ("lease", "start", "end", "skipped")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    lease: int
    start: int
    end: int
    skipped: int
    def __init__(self, lease: _Optional[int] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., skipped: _Optional[int] = ...) -> None: ...

class WorldReply(_message.Message):
    __slots__ = ("incarnation", "version", "round", "phase", "member", "members", "step", "holders", "committed", "change", "reason", "leases", "last_lease", "learning_rate", "pause", "evaluate_at", "restore_cut", "checkpoint", "epoch_left", "epoch", "may_be_short", "source", "copy_at", "evaluated_step", "helpers")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    LAST_LEASE_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_AT_FIELD_NUMBER: _ClassVar[int]
    RESTORE_CUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LEFT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    MAY_BE_SHORT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    COPY_AT_FIELD_NUMBER: _ClassVar[int]
    EVALUATED_STEP_FIELD_NUMBER: _ClassVar[int]
    HELPERS_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    version: int
    round: Round
    phase: str
    member: bool
    members: _containers.RepeatedCompositeFieldContainer[WorldMember]
    step: int
    holders: _containers.RepeatedScalarFieldContainer[str]
    committed: int
    change: bool
    reason: str
    leases: _containers.RepeatedCompositeFieldContainer[LeaseRecords]
    last_lease: int
    learning_rate: float
    pause: bool
    evaluate_at: int
    restore_cut: int
    checkpoint: CheckpointOrder
    epoch_left: int
    epoch: int
    may_be_short: bool
    source: WorldMember
    copy_at: int
    evaluated_step: int
    helpers: _containers.RepeatedCompositeFieldContainer[WorldMember]
    def __init__(self, incarnation: _Optional[int] = ..., version: _Optional[int] = ..., round: _Optional[_Union[Round, _Mapping]] = ..., phase: _Optional[str] = ..., member: _Optional[bool] = ..., members: _Optional[_Iterable[_Union[WorldMember, _Mapping]]] = ..., step: _Optional[int] = ..., holders: _Optional[_Iterable[str]] = ..., committed: _Optional[int] = ..., change: _Optional[bool] = ..., reason: _Optional[str] = ..., leases: _Optional[_Iterable[_Union[LeaseRecords, _Mapping]]] = ..., last_lease: _Optional[int] = ..., learning_rate: _Optional[float] = ..., pause: _Optional[bool] = ..., evaluate_at: _Optional[int] = ..., restore_cut: _Optional[int] = ..., checkpoint: _Optional[_Union[CheckpointOrder, _Mapping]] = ..., epoch_left: _Optional[int] = ..., epoch: _Optional[int] = ..., may_be_short: _Optional[bool] = ..., source: _Optional[_Union[WorldMember, _Mapping]] = ..., copy_at: _Optional[int] = ..., evaluated_step: _Optional[int] = ..., helpers: _Optional[_Iterable[_Union[WorldMember, _Mapping]]] = ...) -> None: ...

class CheckpointOrder(_message.Message):
    __slots__ = ("cut", "at_step", "when_paused")
    CUT_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    WHEN_PAUSED_FIELD_NUMBER: _ClassVar[int]
    cut: int
    at_step: int
    when_paused: bool
    def __init__(self, cut: _Optional[int] = ..., at_step: _Optional[int] = ..., when_paused: _Optional[bool] = ...) -> None: ...

class WorldMember(_message.Message):
    __slots__ = ("uid", "address")
    UID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    uid: str
    address: str
    def __init__(self, uid: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("incarnation", "floor", "revoked", "live", "restore", "cut", "slots", "complete")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    LIVE_FIELD_NUMBER: _ClassVar[int]
    RESTORE_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    floor: int
    revoked: _containers.RepeatedScalarFieldContainer[int]
    live: _containers.RepeatedScalarFieldContainer[int]
    restore: str
    cut: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    complete: bool
    def __init__(self, incarnation: _Optional[int] = ..., floor: _Optional[int] = ..., revoked: _Optional[_Iterable[int]] = ..., live: _Optional[_Iterable[int]] = ..., restore: _Optional[str] = ..., cut: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., complete: _Optional[bool] = ...) -> None: ...

class AttachReply(_message.Message):
    __slots__ = ("initialized", "version", "uid", "applied", "pins")
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    initialized: bool
    version: int
    uid: str
    applied: _containers.RepeatedCompositeFieldContainer[LeaseStep]
    pins: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, initialized: _Optional[bool] = ..., version: _Optional[int] = ..., uid: _Optional[str] = ..., applied: _Optional[_Iterable[_Union[LeaseStep, _Mapping]]] = ..., pins: _Optional[_Iterable[int]] = ...) -> None: ...

class LeaseStep(_message.Message):
    __slots__ = ("lease", "through")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    THROUGH_FIELD_NUMBER: _ClassVar[int]
    lease: int
    through: int
    def __init__(self, lease: _Optional[int] = ..., through: _Optional[int] = ...) -> None: ...

class RevokeRequest(_message.Message):
    __slots__ = ("incarnation", "leases", "floor")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    leases: _containers.RepeatedScalarFieldContainer[int]
    floor: int
    def __init__(self, incarnation: _Optional[int] = ..., leases: _Optional[_Iterable[int]] = ..., floor: _Optional[int] = ...) -> None: ...

class RevokeReply(_message.Message):
    __slots__ = ("applied", "first")
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedCompositeFieldContainer[LeaseStep]
    first: _containers.RepeatedCompositeFieldContainer[LeaseStep]
    def __init__(self, applied: _Optional[_Iterable[_Union[LeaseStep, _Mapping]]] = ..., first: _Optional[_Iterable[_Union[LeaseStep, _Mapping]]] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("incarnation", "cut")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut: int
    def __init__(self, incarnation: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HoldRequest(_message.Message):
    __slots__ = ("incarnation", "cut")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut: int
    def __init__(self, incarnation: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class HoldReply(_message.Message):
    __slots__ = ("applied",)
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    applied: _containers.RepeatedCompositeFieldContainer[LeaseStep]
    def __init__(self, applied: _Optional[_Iterable[_Union[LeaseStep, _Mapping]]] = ...) -> None: ...

class SnapshotRequest(_message.Message):
    __slots__ = ("incarnation", "cut", "checkpoint", "pin", "floor", "within", "keep")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    FLOOR_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut: int
    checkpoint: str
    pin: bool
    floor: int
    within: _containers.RepeatedCompositeFieldContainer[LeaseStep]
    keep: bool
    def __init__(self, incarnation: _Optional[int] = ..., cut: _Optional[int] = ..., checkpoint: _Optional[str] = ..., pin: _Optional[bool] = ..., floor: _Optional[int] = ..., within: _Optional[_Iterable[_Union[LeaseStep, _Mapping]]] = ..., keep: _Optional[bool] = ...) -> None: ...

class SnapshotReply(_message.Message):
    __slots__ = ("waits", "version", "pause_seconds", "entered")
    WAITS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PAUSE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ENTERED_FIELD_NUMBER: _ClassVar[int]
    waits: bool
    version: int
    pause_seconds: float
    entered: int
    def __init__(self, waits: _Optional[bool] = ..., version: _Optional[int] = ..., pause_seconds: _Optional[float] = ..., entered: _Optional[int] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("incarnation", "cut")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut: int
    def __init__(self, incarnation: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("incarnation", "cut")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut: int
    def __init__(self, incarnation: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class UnpinReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SavedRequest(_message.Message):
    __slots__ = ("incarnation", "cut")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    cut: int
    def __init__(self, incarnation: _Optional[int] = ..., cut: _Optional[int] = ...) -> None: ...

class SavedReply(_message.Message):
    __slots__ = ("file", "size", "checksum", "error")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    file: str
    size: int
    checksum: str
    error: str
    def __init__(self, file: _Optional[str] = ..., size: _Optional[int] = ..., checksum: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class Declare(_message.Message):
    __slots__ = ("dense", "tables", "optimizer", "fingerprint")
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    dense: _containers.RepeatedCompositeFieldContainer[Variable]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    optimizer: str
    fingerprint: str
    def __init__(self, dense: _Optional[_Iterable[_Union[Variable, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., optimizer: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class Variable(_message.Message):
    __slots__ = ("name", "shape", "statistic")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STATISTIC_FIELD_NUMBER: _ClassVar[int]
    name: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    statistic: bool
    def __init__(self, name: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., statistic: _Optional[bool] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("name", "rows", "dim", "initializer", "seed")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    dim: int
    initializer: str
    seed: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., dim: _Optional[int] = ..., initializer: _Optional[str] = ..., seed: _Optional[int] = ...) -> None: ...

class Declared(_message.Message):
    __slots__ = ("version", "first")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    version: int
    first: bool
    def __init__(self, version: _Optional[int] = ..., first: _Optional[bool] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: int
    def __init__(self, pin: _Optional[int] = ...) -> None: ...

class Pulled(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class PullRows(_message.Message):
    __slots__ = ("pin", "tables")
    PIN_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    pin: int
    tables: _containers.RepeatedCompositeFieldContainer[TableRows]
    def __init__(self, pin: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableRows, _Mapping]]] = ...) -> None: ...

class TableRows(_message.Message):
    __slots__ = ("name", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    count: int
    def __init__(self, name: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class Push(_message.Message):
    __slots__ = ("incarnation", "worker", "lease", "step", "learning_rate", "weight", "pull", "tables", "empty", "version", "next", "round", "again")
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    EMPTY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    worker: int
    lease: int
    step: int
    learning_rate: float
    weight: float
    pull: bool
    tables: _containers.RepeatedCompositeFieldContainer[TableRows]
    empty: bool
    version: int
    next: int
    round: _containers.RepeatedCompositeFieldContainer[Share]
    again: bool
    def __init__(self, incarnation: _Optional[int] = ..., worker: _Optional[int] = ..., lease: _Optional[int] = ..., step: _Optional[int] = ..., learning_rate: _Optional[float] = ..., weight: _Optional[float] = ..., pull: _Optional[bool] = ..., tables: _Optional[_Iterable[_Union[TableRows, _Mapping]]] = ..., empty: _Optional[bool] = ..., version: _Optional[int] = ..., next: _Optional[int] = ..., round: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., again: _Optional[bool] = ...) -> None: ...

class Pushed(_message.Message):
    __slots__ = ("outcome", "version", "round")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        APPLIED: _ClassVar[Pushed.Outcome]
        DUPLICATE: _ClassVar[Pushed.Outcome]
        REVOKED: _ClassVar[Pushed.Outcome]
        STALE: _ClassVar[Pushed.Outcome]
    APPLIED: Pushed.Outcome
    DUPLICATE: Pushed.Outcome
    REVOKED: Pushed.Outcome
    STALE: Pushed.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    outcome: Pushed.Outcome
    version: int
    round: _containers.RepeatedCompositeFieldContainer[Share]
    def __init__(self, outcome: _Optional[_Union[Pushed.Outcome, str]] = ..., version: _Optional[int] = ..., round: _Optional[_Iterable[_Union[Share, _Mapping]]] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("lease", "step")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    lease: int
    step: int
    def __init__(self, lease: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class ScanRows(_message.Message):
    __slots__ = ("pin", "table", "cursor", "limit")
    PIN_FIELD_NUMBER: _ClassVar[int]
    TABLE_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    pin: int
    table: str
    cursor: int
    limit: int
    def __init__(self, pin: _Optional[int] = ..., table: _Optional[str] = ..., cursor: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ScannedRows(_message.Message):
    __slots__ = ("cursor", "count")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    cursor: int
    count: int
    def __init__(self, cursor: _Optional[int] = ..., count: _Optional[int] = ...) -> None: ...

class FollowRound(_message.Message):
    __slots__ = ("round", "model", "at_step", "part", "parts")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    round: Round
    model: str
    at_step: int
    part: int
    parts: int
    def __init__(self, round: _Optional[_Union[Round, _Mapping]] = ..., model: _Optional[str] = ..., at_step: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ...) -> None: ...

class FollowedRound(_message.Message):
    __slots__ = ("at_step",)
    AT_STEP_FIELD_NUMBER: _ClassVar[int]
    at_step: int
    def __init__(self, at_step: _Optional[int] = ...) -> None: ...

class FetchParts(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, parts: _Optional[_Iterable[int]] = ...) -> None: ...

class RoundState(_message.Message):
    __slots__ = ("step", "shares", "continues", "begun_epochs", "epoch_loss_sum", "epoch_steps", "began_in", "learning_rate", "first_epoch", "part", "parts", "crc32")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    BEGUN_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_STEPS_FIELD_NUMBER: _ClassVar[int]
    BEGAN_IN_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    step: int
    shares: bytes
    continues: bool
    begun_epochs: int
    epoch_loss_sum: float
    epoch_steps: int
    began_in: Round
    learning_rate: float
    first_epoch: int
    part: int
    parts: int
    crc32: int
    def __init__(self, step: _Optional[int] = ..., shares: _Optional[bytes] = ..., continues: _Optional[bool] = ..., begun_epochs: _Optional[int] = ..., epoch_loss_sum: _Optional[float] = ..., epoch_steps: _Optional[int] = ..., began_in: _Optional[_Union[Round, _Mapping]] = ..., learning_rate: _Optional[float] = ..., first_epoch: _Optional[int] = ..., part: _Optional[int] = ..., parts: _Optional[int] = ..., crc32: _Optional[int] = ...) -> None: ...

class RoundStep(_message.Message):
    __slots__ = ("messages", "behind", "continues")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedScalarFieldContainer[bytes]
    behind: int
    continues: bool
    def __init__(self, messages: _Optional[_Iterable[bytes]] = ..., behind: _Optional[int] = ..., continues: _Optional[bool] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "kind", "hint")
    REASON_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    kind: str
    hint: str
    def __init__(self, reason: _Optional[str] = ..., kind: _Optional[str] = ..., hint: _Optional[str] = ...) -> None: ...
