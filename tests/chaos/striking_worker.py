"""`relight worker` that dies where it is told to: right before or after an activity, before its result is reported.

`python -m tests.chaos.striking_worker FOLDER`. A file `armed/ACTIVITY-before` or `armed/ACTIVITY-after` in the folder
is taken by the first worker that comes there, moved to `struck/`, and the worker is killed. The product knows nothing
of this: the worker's own client is made with one more interceptor.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import temporalio.client
import temporalio.worker
from temporalio import activity

from workers.cli import main

ORDERS = ("before", "after")


class Striking(temporalio.client.Interceptor, temporalio.worker.Interceptor):
    """Of a client; Temporal hands it to the workers made of that client as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def intercept_activity(
        self, next: temporalio.worker.ActivityInboundInterceptor
    ) -> temporalio.worker.ActivityInboundInterceptor:
        return _Activity(next, self.folder)


class _Activity(temporalio.worker.ActivityInboundInterceptor):
    def __init__(self, next: temporalio.worker.ActivityInboundInterceptor, folder: Path) -> None:
        super().__init__(next)
        self.folder = folder

    async def execute_activity(self, input: temporalio.worker.ExecuteActivityInput) -> Any:
        name = activity.info().activity_type
        self._strike(name, "before")
        result = await super().execute_activity(input)
        self._strike(name, "after")
        return result

    def _strike(self, name: str, order: str) -> None:
        file = f"{name}-{order}"
        try:
            (self.folder / "armed" / file).rename(self.folder / "struck" / file)
        except FileNotFoundError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def run(folder: Path) -> None:
    connect = temporalio.client.Client.connect

    async def connect_striking(*words: Any, **options: Any) -> temporalio.client.Client:
        return await connect(*words, **options, interceptors=[Striking(folder)])

    temporalio.client.Client.connect = connect_striking  # type: ignore[method-assign]
    raise SystemExit(main(["worker"]))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
