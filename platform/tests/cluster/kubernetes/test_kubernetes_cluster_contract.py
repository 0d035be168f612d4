"""Pods at a scripted API server keep the contract of the cluster port."""

from __future__ import annotations

from support.cluster_contract import PodContract


class TestKubeCluster(PodContract):
    """The fixture ``harness`` is the folder's."""
