"""An agent's own data as bytes for its file, in two parts: what changes with every list, and the older blocks."""

from typing import Any

import msgspec
import numpy as np

from fedcascade.federation.own_data import OwnData

FORMAT = 2
ARRAYS = ("total", "since", "others_gram", "others_moment", "numbers")


def encode_own_data(data: OwnData) -> tuple[bytes, bytes]:
    """Encode own data. The second part is that of all closed blocks."""
    used = int(data.used[0])
    closed = max(0, used - 1)
    recent: dict[str, Any] = {name: getattr(data, name).astype("<f8").tobytes() for name in ARRAYS}
    recent |= {"format": FORMAT, "places": len(data.levels)}
    recent |= {"levels": data.levels[:used].tolist(), "newest": data.blocks[closed:used].astype("<f8").tobytes()}
    return msgspec.msgpack.encode(recent), data.blocks[:closed].astype("<f8").tobytes()


def decode_own_data(recent: bytes, closed: bytes, data: OwnData) -> bool:
    """Fill the own data of an agent that has seen nothing.

    Return False, and fill nothing, if they are of another format, dimension or kind of policy.
    """
    state = msgspec.msgpack.decode(recent)
    fits = all(len(state.get(name, b"")) == getattr(data, name).nbytes for name in ARRAYS)
    if state.get("format") != FORMAT or state["places"] != len(data.levels) or not fits:
        return False
    for name in ARRAYS:
        array = getattr(data, name)
        array[...] = np.frombuffer(state[name], "<f8").reshape(array.shape)
    used = len(state["levels"])
    data.used[0], data.levels[:used] = used, state["levels"]
    data.blocks[:used] = np.frombuffer(closed + state["newest"], "<f8").reshape(used, data.total.size)
    return True
