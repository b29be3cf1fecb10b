"""Stages for the integration tests: real Slurm, real Temporal, the worker as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Act mode, with accounting, six nodes; shared by the tests of one file."""
    with Stage(nodes=6, kill_wait_s=2, cred_expire_s=20) as made:
        made.start_worker()
        yield made
