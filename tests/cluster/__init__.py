"""A real Slurm cluster for tests, demos and people."""

from tests.cluster.cluster import ENDED, ClusterError, SlurmCluster

__all__ = ["ENDED", "ClusterError", "SlurmCluster"]
