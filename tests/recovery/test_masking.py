"""What leaves the site is masked: secrets, folders, names of people. What explains the fault stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.masking import MaskRules, masked, masked_question
from tests.recovery.questions import LINES, question

ALL = MaskRules()
SECRETS = MaskRules(paths=False, users=False)
NAMES = ("alice", "physics")


@pytest.mark.parametrize(
    "text",
    [
        "WANDB_API_KEY=hush-hush",
        "export AWS_SECRET_ACCESS_KEY='hush-hush'",
        '{"password": "hush-hush", "step": 3}',
        "client_secret: hush-hush, retrying",
        "wget --password hush-hush ftp://x",
        "curl -H 'Authorization: Bearer hush-hush'",
        "Authorization: token hush-hush-hush-hush-hush",
        "proxy https://alice:hush-hush@proxy.example:3128/x",
        "git clone https://hush-hush@git.example/x",
        "-----BEGIN RSA PRIVATE KEY-----\nhush-hush",
    ],
)
def test_secrets_are_taken_out(text: str) -> None:
    told = masked(text, SECRETS)
    assert "hush" not in told
    assert "***" in told


@pytest.mark.parametrize(
    "token",
    [
        "sk-" + "a1B2" * 6,
        "ghp_" + "a1B2" * 9,
        "hf_" + "aB" * 12,
        "AKIA" + "ABCD" * 4,
        "xoxb-" + "123456-abcdef",
        "eyJhbGciOi.eyJzdWIiOiIx.c2lnbmF0dXJl",
        "0123456789abcdef0123456789abcdef01234567",
    ],
)
def test_tokens_are_known_by_their_looks(token: str) -> None:
    assert token not in masked(f"using {token} now", SECRETS)


@pytest.mark.parametrize(
    "text",
    [
        "iteration 12/100 | consumed tokens: 4096 | lm loss: 6.5E-01",
        "max_tokens=2048 tokens_per_second = 15.5",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        "[rank3] n02: NCCL WARN Call to recv from 10.0.0.2<41234> failed : Connection reset by peer",
        "NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.",
        'File "/usr/lib/python3.11/site-packages/torch/nn.py", line 3, in forward',
        "slurmstepd: error: *** STEP 12345.0 ON n02 CANCELLED AT 2026-03-01T12:00:00 ***",
    ],
)
def test_what_explains_a_fault_stays(text: str) -> None:
    assert masked(text, ALL, NAMES) == text


def test_folders_go_and_the_files_name_stays() -> None:
    told = masked('File "/home/alice/secret-model/train.py", line 61, in main', MaskRules(users=False))
    assert told == 'File "/***/train.py", line 61, in main'
    assert masked("--data=/lustre/physics/run7/shard-03.bin", ALL, NAMES) == "--data=/***/shard-03.bin"
    assert "alice" in masked("/home/alice/x.py", MaskRules(paths=False, users=False))


def test_names_of_people_go() -> None:
    told = masked("alice_run7 by ALICE <alice@example.org> for physics: alicent", MaskRules(paths=False), NAMES)
    assert told == "USER_run7 by USER <USER> for USER: alicent"
    assert masked("an error by ab", ALL, ("ab",)) == "an error by ab"


def test_own_expressions_go_first() -> None:
    assert masked("project Manhattan-7 step 3", MaskRules(more=(r"Manhattan-\d+",))) == "project *** step 3"


def test_nothing_is_masked_where_nothing_is_to_be() -> None:
    off = MaskRules(secrets=False, paths=False, users=False)
    text = "alice: password=x /home/alice/x"
    assert masked(text, off, NAMES) == text


def test_a_question_keeps_its_hosts_and_loses_its_user() -> None:
    line = LINES[0].model_copy(update={"text": "n02: token=abc for alice in /home/alice/run/x.py"})
    told = masked_question(question(lines=(line,)), ALL)
    assert told.lines[0].text == "n02: token=*** for USER in /***/x.py"
    assert (told.user, told.account) == ("", "")
    assert told.nodes == question().nodes
    assert masked_question(question(), MaskRules(users=False)).user == "alice"


@given(st.text(max_size=300), st.text(max_size=12))
@settings(max_examples=2000, deadline=None)
def test_any_text_can_be_masked(text: str, name: str) -> None:
    told = masked(f"password=hush {text}", ALL, (name,))
    assert "=hush" not in told
