"""Kubernetes' times as unix seconds."""

from __future__ import annotations

from datetime import datetime

from edl.cluster.kubernetes.resource_kinds import Manifest


def moment(text: str | None) -> float | None:
    """Unix seconds of ``2026-01-31T12:00:00Z``, with or without parts of a second; None for nothing."""
    return datetime.fromisoformat(text).timestamp() if text else None


def created(manifest: Manifest) -> float:
    """When an object was created, in unix seconds; 0.0 for one that never was."""
    return moment(manifest.get("metadata", {}).get("creationTimestamp")) or 0.0
