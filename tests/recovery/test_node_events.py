"""What the scheduler says about the nodes of a running job."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.node_events import NodeEvent, NodeTrouble, is_eventful, node_events, node_findings
from recovery.records import Certainty, FaultClass, Finding, JobState, NodeView, Role
from tests.recovery.situations import NODES, at, view

STARTED = at(10)


def node(name: str = "n02", state: str = "ALLOCATED", **more: Any) -> NodeView:
    usual: dict[str, Any] = {"boot_time": at(-5000), "slurmd_start_time": at(-4000)}
    return NodeView(name=name, state=state, **{**usual, **more})


def events(*nodes: NodeView) -> tuple[NodeEvent, ...]:
    return node_events(nodes, NODES, STARTED)


def finding(one: NodeView, *, step: float | None = None, stopped: bool = False) -> Finding:
    step_at = None if step is None else at(step)
    (found,) = node_findings(view(JobState.RUNNING), events(one), at(600), step_at=step_at, stopped=stopped)
    return found


@pytest.mark.parametrize(
    ("one", "trouble"),
    [
        (node(state="DOWN", reason="Not responding"), NodeTrouble.DOWN),
        (node(flags=("NOT_RESPONDING",)), NodeTrouble.NOT_RESPONDING),
        (node(flags=("DRAIN",), reason="firmware"), NodeTrouble.DRAINING),
        (node(boot_time=at(300), slurmd_start_time=at(320)), NodeTrouble.REBOOTED),
        (node(slurmd_start_time=at(300)), NodeTrouble.DAEMON_RESTARTED),
    ],
)
def test_each_trouble_is_told(one: NodeView, trouble: NodeTrouble) -> None:
    (event,) = events(one)
    assert (event.node, event.trouble) == ("n02", trouble)
    assert is_eventful(one, STARTED)


@pytest.mark.parametrize(
    "one",
    [
        node(),
        node(state="MIXED"),
        node(flags=("COMPLETING",)),
        node(boot_time=at(8), slurmd_start_time=at(9)),
        node(boot_time=at(11), slurmd_start_time=at(11)),  # clocks differ
        node(boot_time=None, slurmd_start_time=None),
    ],
)
def test_a_node_that_is_well_has_no_event(one: NodeView) -> None:
    assert events(one) == ()


def test_nodes_of_others_are_not_looked_at() -> None:
    assert events(node("n07", state="DOWN")) == ()


def test_daemons_restarted_everywhere_were_restarted_by_somebody() -> None:
    assert events(*(node(name, slurmd_start_time=at(300)) for name in NODES)) == ()
    assert len(events(node("n01", slurmd_start_time=at(300)), node("n02"))) == 1


def test_a_reboot_under_the_job_is_a_cause_that_names_the_node() -> None:
    found = finding(node(boot_time=at(300)), step=290)
    assert (found.role, found.fault_class, found.nodes) == (Role.ROOT, FaultClass.HARDWARE, ("n02",))
    assert found.trusted
    assert found.at == at(300)


def test_a_reboot_that_steps_followed_did_not_hurt_the_job() -> None:
    found = finding(node(boot_time=at(300)), step=500)
    assert (found.role, found.fault_class) == (Role.BENIGN, FaultClass.NONE)
    assert "went on" in found.summary


def test_a_restarted_daemon_is_a_cause_only_when_steps_stopped() -> None:
    one = node(slurmd_start_time=at(300))
    assert finding(one, step=290).role is Role.BENIGN
    stopped = finding(one, step=290, stopped=True)
    assert (stopped.role, stopped.certainty) == (Role.ROOT, Certainty.CONFIRMED)
    assert stopped.id != finding(one, step=290).id


def test_a_drain_is_never_a_cause() -> None:
    found = finding(node(flags=("DRAIN",), reason="NHC: disk"), step=290, stopped=True)
    assert (found.role, found.fault_class) == (Role.BENIGN, FaultClass.NONE)
    assert "NHC: disk" in found.summary


def test_silence_of_a_node_is_suspected_until_steps_stop() -> None:
    one = node(flags=("NOT_RESPONDING",))
    assert finding(one).certainty is Certainty.SUSPECTED
    assert finding(one, stopped=True).certainty is Certainty.CONFIRMED


def test_the_same_event_has_the_same_id_at_every_look() -> None:
    one = events(node(boot_time=at(300)))
    job = view(JobState.RUNNING)
    first = node_findings(job, one, at(310), step_at=None, stopped=False)
    later = node_findings(job, one, at(390), step_at=None, stopped=False)
    assert [found.id for found in first] == [found.id for found in later]


def test_the_number_of_events_is_bounded() -> None:
    names = tuple(f"n{number:04d}" for number in range(500))
    assert len(node_events([node(name, state="DOWN") for name in names], names, STARTED)) == 20
