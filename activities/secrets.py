"""Takes what looks like a secret out of data that leaves the machine, also inside the payloads of histories."""

from __future__ import annotations

import base64
import json
import re
from functools import lru_cache
from typing import Any

from recovery.masking import MASK, MaskRules, masked

SECRETS = MaskRules(secrets=True, paths=False, users=False)

_SECRET_KEY = re.compile(r"(?i)passw|passphrase|secret|api_?key|access_?key|private_?key|credential|auth_?token")
_IDS = frozenset({"buildId", "binaryChecksum", "runId", "run_id", "requestId", "policy_hash", "catalogue_hash", "hash"})
"""Not secret, however much they look like it."""

_SHORTEST = 8


def without_secrets(value: Any, key: str = "") -> Any:
    """The same data with secrets masked; what kind of value stands where does not change."""
    if isinstance(value, dict):
        if isinstance(value.get("data"), str) and isinstance(value.get("metadata"), dict):
            return {**value, "data": _payload(value["data"])}
        return {name: without_secrets(inner, str(name)) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [without_secrets(inner, key) for inner in value]
    if not isinstance(value, str) or key in _IDS:
        return value
    if _SECRET_KEY.search(key) and value:
        return MASK
    return _clean(value) if len(value) >= _SHORTEST else value


def _payload(data: str) -> str:
    """A payload of Temporal: JSON in base64. What is something else (encrypted) stays as it is."""
    try:
        value = json.loads(base64.b64decode(data))
    except ValueError:
        return data
    text = json.dumps(without_secrets(value), separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode()


@lru_cache(maxsize=100_000)
def _clean(text: str) -> str:
    return masked(text, SECRETS)
