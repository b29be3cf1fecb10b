"""How far an outside answer may go: it may point at a node of the job where the rules cannot, and nothing else."""

from __future__ import annotations

from random import Random

from hypothesis import given

from recovery.attribution import About, AnswerStatus, Attribution, Trust, evidence_lines, may_help, refined
from recovery.policy import decide
from recovery.records import Action, Advice, Confidence, FaultClass, JobState, Retry, Role, Verdict
from tests.recovery.questions import answered
from tests.recovery.situations import CLUSTER, attempt, finding, situation, suspect, verdict, view
from tests.recovery.test_policy_properties import made, seeds, thorough

UNKNOWN = verdict(FaultClass.UNKNOWN, signature="scheduler.failed")


def decided(cause: Verdict, *earlier: str) -> Advice:
    before = attempt(0, suspects=earlier, fault_class=FaultClass.UNKNOWN, signature="scheduler.failed")
    job = view(restarts=1)
    return decide(situation(job, attempts=(before, attempt(1)), verdict=cause), made(1)[1].model_copy(update=USUAL))


USUAL = {
    "max_restarts": 9,
    "max_restarts_per_day": 9,
    "max_restarts_unknown": 3,
    "max_restarts_same_cause": 9,
    "max_restarts_no_new_checkpoint": 9,
    "max_node_hours_without_progress": 1_000.0,
    "max_excluded_share": 0.5,
}


def test_where_the_rules_cannot_tell_an_outsider_adds_a_weak_suspect() -> None:
    told = refined(UNKNOWN, [answered("n02")], (), view())
    assert [(one.node, one.confidence, one.trusted, one.by) for one in told.suspects] == [
        ("n02", Confidence.LOW, False, "http")
    ]
    assert (told.fault_class, told.signature, told.retry) == (UNKNOWN.fault_class, UNKNOWN.signature, UNKNOWN.retry)
    assert told.by == "rules+http"
    assert "http thinks hardware, on n02" in told.reason


def test_a_weak_suspect_is_avoided_at_its_second_offence_only() -> None:
    told = refined(UNKNOWN, [answered("n02", attempt=1)], (), view(restarts=1))
    assert decided(told).exclude == ()
    assert decided(told, "n03").exclude == ()
    assert decided(told, "n02").exclude == ("n02",)


def test_a_provider_the_site_trusts_is_believed_at_once() -> None:
    told = refined(UNKNOWN, [answered("n02", attempt=1, trust=Trust.STRONG)], (), view(restarts=1))
    advice = decided(told)
    assert (advice.action, advice.rule, advice.exclude) == (Action.RESTART, "unknown", ("n02",))
    storage = answered("n02", attempt=1, trust=Trust.STRONG, category=FaultClass.STORAGE)
    assert decided(refined(UNKNOWN, [storage], (), view(restarts=1))).exclude == ()


def test_a_fault_whose_node_is_not_known_takes_one() -> None:
    where = verdict(FaultClass.INTERCONNECT)
    assert [one.node for one in refined(where, [answered("n03")], (), view()).suspects] == ["n03"]


def test_local_evidence_is_never_touched() -> None:
    for sure in (
        verdict(FaultClass.HARDWARE, suspect("n01")),
        verdict(FaultClass.UNKNOWN, suspect("n01", Confidence.MEDIUM)),
        verdict(FaultClass.USER, retry=Retry.NO),
        verdict(FaultClass.APPLICATION),
        verdict(FaultClass.OUT_OF_MEMORY),
        verdict(FaultClass.STORAGE),
        verdict(FaultClass.UNKNOWN, retry=Retry.NO),
        verdict(FaultClass.NONE, retry=Retry.HANDS_OFF),
    ):
        answers = [
            answered("n02", trust=Trust.STRONG, may_stop=True),
            answered(category=FaultClass.USER, may_stop=True),
        ]
        assert refined(sure, answers, (), view()) is sure


def test_what_lies_in_what_nodes_share_is_not_laid_on_one() -> None:
    shared = verdict(FaultClass.INTERCONNECT)
    alike = [finding(id=node, fault_class=FaultClass.INTERCONNECT, nodes=(node,)) for node in ("n01", "n02", "n03")]
    assert not may_help(shared, alike, view())
    assert refined(shared, [answered("n02")], alike, view()) is shared


def test_answers_that_do_not_count() -> None:
    for one in (
        answered("n09"),
        answered("n01", "n02", "n03"),
        answered("n02", attempt=3),
        answered("n02", about=About.HANG),
        answered("n02", status=AnswerStatus.LATE),
        answered("n02", category=FaultClass.USER),
        answered("n02", category=FaultClass.UNKNOWN),
        answered(),
    ):
        assert refined(UNKNOWN, [one], (), view()) is UNKNOWN


def test_one_retry_only_where_the_site_lets_it_say_so() -> None:
    theirs = answered(category=FaultClass.APPLICATION, attempt=1)
    assert refined(UNKNOWN, [theirs], (), view(restarts=1)) is UNKNOWN
    told = refined(UNKNOWN, [theirs.model_copy(update={"may_stop": True})], (), view(restarts=1))
    assert told.retry is Retry.ONCE
    assert decided(told).rule == "once_spent"
    first = decide(situation(verdict=told.model_copy()), made(1)[1].model_copy(update=USUAL))
    assert first.action is Action.RESTART


def test_lines_of_evidence_have_names_and_bounds() -> None:
    lines = evidence_lines(
        [
            finding(evidence="x" * 1_900, nodes=("n02",), rank=3),
            finding(id="f2", role=Role.BENIGN),
            finding(id="f3", summary="no line"),
        ]
    )
    assert [(line.ref, line.rank, line.nodes) for line in lines] == [("L1", 3, ("n02",)), ("L2", None, ())]
    assert [len(lines[0].text), lines[1].text] == [500, "no line"]


def liar(seed: int, restarts: int, *, trust: Trust) -> list[Attribution]:
    """Answers of somebody who says anything, ungrounded."""
    random = Random(seed)
    names = (*CLUSTER, "stranger", "")
    return [
        answered(
            *random.sample(names, random.randint(0, 4)),
            category=random.choice(list(FaultClass)),
            attempt=random.choice((restarts, restarts, restarts - 1)),
            status=random.choice((AnswerStatus.ANSWERED, *AnswerStatus)),
            trust=trust,
            provider=random.choice(("http", "chat")),
        )
        for _ in range(random.randint(1, 3))
    ]


@given(seeds)
@thorough
def test_a_liar_changes_no_action_no_rule_and_no_budget(seed: int) -> None:
    case, policy = made(seed, force=True)
    view_ = case.view
    assert view_ is not None
    if not view_.state.is_final:  # of a job that lives nobody is asked, but for the record
        case = case.model_copy(update={"view": view_.model_copy(update={"state": JobState.FAILED})})
        view_ = case.view
        assert view_ is not None
    told = refined(case.verdict, liar(seed, view_.restarts, trust=Trust.WEAK), case.findings, view_)
    before = decide(case, policy)
    after = decide(case.model_copy(update={"verdict": told}), policy)
    assert (after.action, after.look_again_at) == (before.action, before.look_again_at)
    assert [(one.name, one.used) for one in after.budgets] == [(one.name, one.used) for one in before.budgets]
    assert after.rule == before.rule or {before.rule, after.rule} <= {"infrastructure", "suspect"}
    added = set(after.exclude) - set(before.exclude)
    earlier = {node for one in case.attempts for node in one.suspects if one.number < view_.restarts}
    assert added <= set(view_.nodes) & earlier
    assert set(before.exclude) <= set(after.exclude)


@given(seeds)
@thorough
def test_whoever_is_trusted_names_nobody_outside_the_allocation(seed: int) -> None:
    case, _ = made(seed)
    assert case.view is not None
    told = refined(case.verdict, liar(seed, case.view.restarts, trust=Trust.STRONG), case.findings, case.view)
    added = {one.node for one in told.suspects if one.by}
    assert added <= set(case.view.nodes)
    assert len(added) <= max(1, len(case.view.nodes) / 2) * 2  # two providers, each below half
    assert all(not one.trusted and one.confidence is not Confidence.HIGH for one in told.suspects if one.by)
    kept = {one for one in case.verdict.suspects if one.confidence is not Confidence.LOW}
    assert kept <= set(told.suspects)
    assert (told.fault_class, told.signature, told.retry) == (
        case.verdict.fault_class,
        case.verdict.signature,
        case.verdict.retry,
    )
