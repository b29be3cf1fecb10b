"""A process that asks for permits from several threads at once and prints one line for each that was granted."""

import sys
from typing import Any

from activities.audit.store import AuditStore
from tests.activities.audit.samples import all_at_once, request


def main() -> None:
    url, cluster, name, threads = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
    caps: dict[str, Any] = {"max_restarts_at_once": 7, "max_actions_per_hour": 100, "max_excluded_share": 0.05}
    with AuditStore(url, timeout_s=60) as store:
        print("ready", flush=True)
        sys.stdin.readline()
        requests = [request(cluster, f"{name}-{n}", nodes=(f"{name}-{n}",), **caps) for n in range(threads)]
        answers = all_at_once([lambda one=one: store.permit(one) for one in requests])  # type: ignore[misc]
    for one, answer in zip(requests, answers, strict=True):
        if answer.granted:
            print(one.step_key, flush=True)


main()
