"""Lease, stop, release, arm and re-arm on a real cluster."""

from __future__ import annotations

import pytest

from activities.slurm.errors import RefusalKind, Refused
from recovery.records import JobState
from tests.activities.slurm.conftest import Site, soon
from tests.cluster import ENDED
from tests.cluster.waiting import until


async def test_a_lease_is_set_brought_forward_and_cleared(site: Site) -> None:
    job = site.submit("sleep 600", "--begin=now+600")
    done = await site.client.lease(job, 0, deadline=soon(), exclude=["n01", "n02", "n99"], start_in_s=300)
    assert (done.done, done.leased, done.unknown) == (True, True, ("n99",))
    assert done.view is not None
    assert done.view.excluded == ("n01", "n02")
    done = await site.client.lease(job, 0, deadline=soon(), start_in_s=5)
    assert done.view is not None
    assert done.view.excluded == ("n01", "n02")
    done = await site.client.lease(job, 0, deadline=soon(), exclude=[])
    assert done.view is not None
    assert done.view.excluded == ()
    site.cluster.wait_state(job, {"RUNNING"})
    for count, kind in ((0, RefusalKind.NOT_PENDING), (1, RefusalKind.STALE)):
        with pytest.raises(Refused) as refused:
            await site.client.lease(job, count, deadline=soon(), exclude=["n01"])
        assert refused.value.kind is kind


async def test_stop_ends_running_and_waiting_attempts_and_no_others(site: Site) -> None:
    running, waiting = site.running("-n1"), site.submit("true", "--begin=now+600")
    for job in (running, waiting):
        assert (await site.client.stop(job, 0, deadline=soon())).done
        assert site.cluster.wait_state(job, ENDED) == "CANCELLED"
        with pytest.raises(Refused) as refused:
            await site.client.stop(job, 0, deadline=soon())
        assert refused.value.kind is RefusalKind.CANCELLED
    finished = site.ended("exit 1")
    with pytest.raises(Refused) as refused:
        await site.client.stop(finished, 0, deadline=soon())
    assert refused.value.kind is RefusalKind.FINISHED
    await site.client.restart(finished, 0, deadline=soon(), start_in_s=90)
    with pytest.raises(Refused) as refused:
        await site.client.stop(finished, 0, deadline=soon())
    assert refused.value.kind is RefusalKind.STALE
    done = await site.client.stop(finished, 1, deadline=soon())
    assert done.view is not None
    assert done.view.state is JobState.CANCELLED


async def test_release_frees_what_slurm_held_and_nothing_that_people_hold(site: Site) -> None:
    with site.failing_prolog():
        job = site.submit("sleep 600", "-n1")
        until(lambda: site.restarts(job) == 1, "the launch has failed", timeout_s=60)
        until(lambda: site.cluster.show(job)["Priority"] == "0", "Slurm holds the job", timeout_s=60)
    site.resume_drained()
    view = await site.view(job)
    assert (view.reason, view.held, view.restarts) == ("launch failed requeued held", True, 1)
    done = await site.client.release(job, 1, deadline=soon())
    assert done.view is not None
    assert not done.view.held
    site.cluster.wait_state(job, {"RUNNING"})

    mine = site.submit("true", "--begin=now+600")
    site.cluster.run("scontrol", "hold", mine, user="alice", check=True)
    sites = site.submit("true", "--begin=now+600")
    site.cluster.run("scontrol", "hold", sites, check=True)
    requeued = site.ended("exit 1", name="requeued")
    site.cluster.run("scontrol", "requeuehold", requeued, check=True)
    for held, count in ((mine, 0), (sites, 0), (requeued, 1)):
        assert (await site.view(held)).held
        with pytest.raises(Refused, match="held by a person or the site"):
            await site.client.release(held, count, deadline=soon())
        assert (await site.view(held)).held


async def test_a_no_requeue_job_is_armed_while_it_lives(site: Site) -> None:
    job = site.running("-n1", "--no-requeue")
    assert not (await site.view(job)).requeue
    done = await site.client.arm(job, 0, deadline=soon())
    assert done.view is not None
    assert (done.done, done.view.requeue) == (True, True)
    again = await site.client.arm(job, 0, deadline=soon())
    assert (again.done, again.already) == (False, True)
    late = site.ended("exit 1", "--no-requeue", name="late")
    with pytest.raises(Refused) as refused:
        await site.client.arm(late, 0, deadline=soon())
    assert refused.value.kind is RefusalKind.FINISHED


async def test_an_afterok_child_is_rearmed_with_its_other_wishes_and_runs(site: Site) -> None:
    other = site.submit("true", "--begin=now+600", name="other")
    parent = site.submit('[ -n "$SLURM_RESTART_COUNT" ] || exit 1', "-n1", name="parent")
    child = site.submit("true", f"--dependency=afterok:{parent},afterany:{other}", "-n1", name="child")
    only = site.submit("true", f"--dependency=afterok:{parent}", "-n1", name="only")
    site.cluster.wait_state(parent, ENDED)

    def given_up() -> bool:
        return all("(failed)" in site.cluster.show(job)["Dependency"] for job in (child, only))

    until(given_up, "Slurm gives both children up", timeout_s=60)
    assert (await site.client.relatives(parent)).unsatisfied == tuple(sorted((child, only)))
    with pytest.raises(Refused, match="such a parent cannot fulfil afterok"):
        await site.client.rearm(child, parent, deadline=soon())
    await site.client.restart(parent, 0, deadline=soon(), start_in_s=5)
    for job in (child, only):
        done = await site.client.rearm(job, parent, deadline=soon())
        assert done.view is not None
        assert f"afterok:{parent}(unfulfilled)" in done.view.dependency
        assert (await site.client.rearm(job, parent, deadline=soon())).already
    assert f"afterany:{other}(unfulfilled)" in (await site.view(child)).dependency
    with pytest.raises(Refused, match=f"does not wait for afterok:{parent}"):
        await site.client.rearm(other, parent, deadline=soon())
    assert site.cluster.wait_state(parent, ENDED) == "COMPLETED"
    assert site.cluster.wait_state(only, ENDED) == "COMPLETED"
    assert site.cluster.state(child) == "PENDING"
