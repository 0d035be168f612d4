"""What a gRPC status means for EDL: try again, or refused for good. Decisions only."""

from __future__ import annotations

from edl.core.errors import EdlError, RefusedError, RetryableError
from edl.rpc.refusal import Refused, kind_of

import grpc

KIND_KEY = "edl-kind"
"""Trailing metadata that carries the kind of a refusal."""
