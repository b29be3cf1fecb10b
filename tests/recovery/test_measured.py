"""What the training survived is no longer a cause, also where metrics tell of it."""

from datetime import UTC, datetime, timedelta

from recovery.measured import with_survivals
from recovery.records import FaultClass, Finding, Role

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def finding(at: datetime | None) -> Finding:
    return Finding(
        id="metrics-1",
        attempt=0,
        detector="metrics",
        signature="fabric.link_down",
        fault_class=FaultClass.INTERCONNECT,
        at=at,
        seen_at=AT,
        nodes=("n1",),
        trusted=True,
        summary="A fabric link went down on n1",
    )


def role(at: datetime | None, step_at: datetime | None) -> Role:
    (one,) = with_survivals([finding(at)], step_at)
    assert one.id == "metrics-1"
    return one.role


def test_a_change_after_which_steps_were_completed_is_benign() -> None:
    assert role(AT, AT + timedelta(minutes=2)) is Role.BENIGN


def test_a_change_that_nothing_followed_stays_a_cause() -> None:
    assert role(AT, AT - timedelta(minutes=2)) is Role.ROOT
    assert role(AT, AT + timedelta(seconds=5)) is Role.ROOT  # the step may have been complete before
    assert role(AT, None) is Role.ROOT
    assert role(None, AT) is Role.ROOT
