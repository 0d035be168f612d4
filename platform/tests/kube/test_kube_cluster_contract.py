"""Pods at a scripted API server keep the contract of the cluster port."""

from __future__ import annotations

from cluster_contract import ClusterContract


class TestKubeCluster(ClusterContract):
    """The fixture ``stand`` is the folder's."""

    TELLS_LEAVING = True
    TELLS_ELEVATED = True
