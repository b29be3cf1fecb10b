"""What keeps a worker from starting is told in one sentence that names the file or setting, never as a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.settings import Settings
from workers.worker import CannotServe, _site


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"policy_file": "{dir}/bad.yaml"}, "bad.yaml:1: clusters.prod.mod: is not known; did you mean mode?"),
        ({"policy_file": "{dir}/none.yaml"}, "none.yaml: No such file or directory"),
        ({"catalogue": ["{dir}/none.yaml"]}, "none.yaml: cannot be read"),
        ({"evidence_dir": "{dir}/bad.yaml"}, "bad.yaml: File exists"),
        ({"database": {"url": "oracle://x/y"}}, "database.url: the audit database cannot be of the kind 'oracle'"),
        ({"database": {"url": "sqlite:////proc/none/audit.db"}}, "the audit database cannot be used"),
    ],
)
def test_a_setting_that_cannot_work_is_named(given: dict[str, object], said: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("clusters: {prod: {mod: act}}\n")
    usable = {"database": {"url": f"sqlite:///{tmp_path}/audit.db"}, "evidence_dir": f"{tmp_path}/evidence"}
    with pytest.raises(CannotServe) as refusal:
        _site(Settings(**{**usable, **_filled(given, str(tmp_path))}))  # type: ignore[arg-type]
    assert said in str(refusal.value)


def _filled(value: object, folder: str) -> dict[str, object]:
    assert isinstance(value, dict)
    return {key: _text(one, folder) for key, one in value.items()}


def _text(value: object, folder: str) -> object:
    if isinstance(value, str):
        return value.replace("{dir}", folder)
    return [_text(one, folder) for one in value] if isinstance(value, list) else value
