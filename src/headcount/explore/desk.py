"""One job at a time; a page's request is dropped if the page has sent a newer one."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

PAGES = 200
"""How many pages and kinds of requests are remembered."""


class Overtaken(Exception):
    """The same page has sent a newer request in the meantime."""


class Desk:
    """A single worker: models carry gates while they work, so they serve one request at a time."""

    def __init__(self) -> None:
        self.worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="headcount")
        self.newest: OrderedDict[tuple[str, str], int] = OrderedDict()

    async def work(self, page: str, kind: str, turn: int, job: Callable[[], T]) -> T:
        """Do a job for a page; of each kind of request only the newest turn counts."""
        key = (page, kind)
        self.newest[key] = max(turn, self.newest.pop(key, turn))
        while len(self.newest) > PAGES:
            self.newest.popitem(last=False)

        def when_its_turn_comes() -> T:
            if turn < self.newest.get(key, turn):
                raise Overtaken
            return job()

        return await asyncio.get_running_loop().run_in_executor(self.worker, when_its_turn_comes)

    def close(self) -> None:
        """Wait for the running job, and drop those that are waiting."""
        self.worker.shutdown(cancel_futures=True)
