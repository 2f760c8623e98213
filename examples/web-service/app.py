r"""A web service that recommends: any worker serves any user, and every click counts once.

Run it with any number of workers on one store:

    FEDCASCADE_URL=http://127.0.0.1:8777 AGENTS=postgresql://user@host/shop ENROLMENT_KEY=... \
        uvicorn app:app --workers 4
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
from litestar import Litestar, Request, post
from litestar.datastructures import State
from litestar.exceptions import ClientException, HTTPException

from fedcascade import AsyncAgentPool, normalise

DIMENSION, ITEMS, OFFERED, SHOWN = 8, 400, 10, 4
FLOOR = int(os.environ.get("FLOOR", "16"))  # observations in an upload
drawn = np.random.default_rng(7).normal(size=(ITEMS, DIMENSION))
CATALOGUE = normalise(drawn)  # one row of features for each item of the shop


@asynccontextmanager
async def open_pool(app: Litestar) -> AsyncIterator[None]:
    """Open the users' agents, with an enrolment key of ``fedcascade enrolment-key shop``."""
    pool = AsyncAgentPool(
        os.environ["FEDCASCADE_URL"],
        store=os.environ["AGENTS"],
        tokens=os.environ["ENROLMENT_KEY"],
        min_observations=FLOOR,
    )
    async with pool:
        app.state.pool = pool
        yield


@post("/users/{user:str}/lists")
async def show_list(user: str, request: Request[Any, Any, State]) -> dict[str, Any]:
    """Choose a list among the items of a page of the shop."""
    page = (await request.json())["page"]
    first = page * OFFERED % ITEMS
    shown = await request.app.state.pool.recommend(user, CATALOGUE[first : first + OFFERED], SHOWN)
    return {"impression": shown.impression, "items": [first + int(row) for row in shown.items]}


@post("/users/{user:str}/clicks")
async def count_click(user: str, request: Request[Any, Any, State]) -> dict[str, Any]:
    """Learn from the click on a list, or from none."""
    outcome = await request.json()
    try:
        await request.app.state.pool.feedback(user, outcome["impression"], clicked=outcome["clicked"])
    except ValueError as error:
        raise ClientException(str(error), status_code=409) from None
    except OSError as error:  # the store is away: nothing has changed
        raise HTTPException(str(error), status_code=503) from None
    return {}


app = Litestar([show_list, count_click], lifespan=[open_pool], logging_config=None)
