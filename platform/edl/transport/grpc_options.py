"""gRPC options on which client and server of the control plane must agree."""

from __future__ import annotations

MAX_MESSAGE_BYTES = 4 << 20
"""Maximum bytes of a control message."""

_KEEPALIVE_MS = 2_000  # a vanished pod answers no packet, not even with a reset

_SIZE_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    *_SIZE_OPTIONS,
    ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
    ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS),
    # measured with gRPC 1.85: the answer to a keepalive ping is awaited this long, by default 60 s
    ("grpc.http2.ping_timeout_ms", _KEEPALIVE_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.use_local_subchannel_pool", 1),  # so that a new channel opens a new connection
    ("grpc.enable_http_proxy", 0),
)

MAX_CONCURRENT_STREAMS = 100
"""Maximum calls at a time on one connection; further ones wait in the client. A role has only a few."""

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_SIZE_OPTIONS,
    ("grpc.max_concurrent_streams", MAX_CONCURRENT_STREAMS),
    # These close connections of peers without the token: the first if they are silent, the second if they speak
    # HTTP/2. A client whose idle connection was closed reconnects with its next call.
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.so_reuseport", 0),  # two servers must not share a port by accident
    # otherwise the keepalive pings of clients would count as abuse
    ("grpc.http2.min_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", _KEEPALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_ping_strikes", 0),
)
