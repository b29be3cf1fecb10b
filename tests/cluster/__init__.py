"""A real Slurm cluster for tests, demos and people."""

from tests.cluster.client import ClusterError
from tests.cluster.cluster import ENDED, SlurmCluster

__all__ = ["ENDED", "ClusterError", "SlurmCluster"]
