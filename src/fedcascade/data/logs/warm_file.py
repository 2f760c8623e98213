"""What a log taught, in a file: arrays and JSON in one NPZ, versioned, without pickles."""

import io
import json
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np

from fedcascade.checks import require
from fedcascade.data.files import write_atomically
from fedcascade.learning.log_sums import LogSums

FORMAT = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class WarmState:
    """The sums of each user, the users' names in order, and how many lists of the log they hold."""

    sums: LogSums
    users: tuple[str, ...]
    policy: str
    log: str
    lists: int
    is_complete: bool


def save_warm(path: str | PathLike[str], state: WarmState) -> None:
    """Write a state so that the file appears whole or not at all; sums are exact, so loading gives the same bits."""
    sums = state.sums
    facts = {"format": FORMAT, "policy": state.policy, "log": state.log, "lists": state.lists,
             "complete": state.is_complete, "users": list(state.users)}  # fmt: skip
    stream = io.BytesIO()
    count = sums.users
    np.savez(stream, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8), gram=sums.gram[:count],
             moment=sums.moment[:count], counts=sums.counts[:count])  # fmt: skip
    write_atomically(Path(path), stream.getvalue())


def load_warm(path: str | PathLike[str]) -> WarmState:
    """Read what ``save_warm`` wrote."""
    file = Path(path)
    require(file.is_file(), f"there is no file {file}")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            gram, moment, counts = (arrays[name] for name in ("gram", "moment", "counts"))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{file} is not what fedcascade fit writes: {error}") from None
    written = facts.get("format")
    require(written == FORMAT, f"{file} must have format {FORMAT}, got {written}: fit it again")
    sums = LogSums(moment.shape[1])
    sums.gram, sums.moment, sums.counts, sums.users = gram, moment, counts, len(moment)
    return WarmState(sums=sums, users=tuple(facts["users"]), policy=facts["policy"], log=facts["log"],
                     lists=facts["lists"], is_complete=facts["complete"])  # fmt: skip
