"""The planner as a site: the page, and what it may ask.

Guarantee: quick answers never wait for exact ones, which a process of their own computes.
"""

from __future__ import annotations

import contextlib
import multiprocessing
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import Any

from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.pages.planner.answers import answer, plan_of
from fedspend.pages.planner.page import planner_page
from fedspend.pages.planner.settings import Settings, read_settings, settings_of
from fedspend.pages.serving import Site
from fedspend.planning.policies import POLICIES

Told = tuple[dict[str, Any] | None, str]  # an answer, or why there is none


@contextlib.contextmanager
def planner_site(settings: Settings) -> Iterator[Site]:
    """The planner, starting from `settings`."""
    with _beside() as beside:
        yield Site(
            pages={"": lambda: planner_page(settings)},
            asks={
                "quick": lambda body: answer(read_settings(body), exact=False),
                "exact": lambda body: beside(read_settings(body)),
                "plan": _plan_file,
                "open": _opened,
            },
        )


@contextlib.contextmanager
def _beside() -> Iterator[Callable[[Settings], dict[str, Any]]]:
    """Exact answers by another process; in this one, if policies of the user's own are loaded."""
    if POLICIES.own:
        yield lambda settings: answer(settings, exact=True)
        return
    spawned = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawned, initializer=_warm) as pool:

        def ask(settings: Settings) -> dict[str, Any]:
            try:
                found, refusal = pool.submit(_told, settings).result()
            except BrokenExecutor:
                raise Refused(
                    "exact numbers are not to be had: the process that computes them was ended, "
                    "perhaps for lack of memory; start the planner again"
                ) from None
            if found is None:
                raise InvalidInput(refusal)
            return found

        pool.submit(_warm)
        try:
            yield ask
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _told(settings: Settings) -> Told:
    try:
        return answer(settings, exact=True), ""
    except FedspendError as error:
        return None, str(error)


def _warm() -> None:
    """Ctrl-C is for the server; and the first answer should not wait for tables to be made."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answer(Settings(), exact=False)


def _plan_file(body: dict[str, Any]) -> dict[str, Any]:
    return {"text": plan_of(read_settings(body), exact=True).file_text()}


def _opened(body: dict[str, Any]) -> dict[str, Any]:
    text, name = body.get("text"), body.get("name")
    if not isinstance(text, str) or not isinstance(name, str):
        raise InvalidInput("a file has a name and a text")
    return {"settings": settings_of(text, name[:100]).to_dict()}
