"""Kubernetes' times as unix seconds."""

from __future__ import annotations

from datetime import datetime

from edl.cluster.kubernetes.resource_kinds import Manifest


def parse_timestamp(text: str | None) -> float | None:
    """Unix seconds of ``2026-01-31T12:00:00Z``, with or without parts of a second; None for nothing."""
    return datetime.fromisoformat(text).timestamp() if text else None


def creation_time(manifest: Manifest) -> float:
    """When an object was created, in unix seconds; 0.0 for one that never was."""
    return parse_timestamp(manifest.get("metadata", {}).get("creationTimestamp")) or 0.0
