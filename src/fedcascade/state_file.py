"""State files: arrays and JSON in one NPZ, versioned, exact to the bit, without pickles.

The member ``facts`` is JSON: the format, the kind of state, and a tree of values in which ``{"$array": name}`` refers
to another member. Each member is referred to once, so a state takes little more memory than its file.
"""

import io
import json
import math
import re
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedcascade.checks import require
from fedcascade.learning.statistics import Statistics
from fedcascade.platforms import write_atomically

FORMAT = 1
SUMS, AGENT, SERVER = "sums", "agent", "server"
MEMBER = re.compile(r"[A-Za-z0-9_.-]{1,200}\.npy")
KINDS_OF_NUMBERS = "biuf"
MOST_FACTS, MOST_CONTAINERS = 1 << 25, 1 << 18  # bytes of the facts, and lists and objects in them
Arrays = dict[str, NDArray[Any]]
INVALID = (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError, RuntimeError)
BROKEN = (OSError, EOFError, zipfile.BadZipFile, *INVALID)  # the errors of reading a damaged file


def write_state_file(path: str | PathLike[str], kind: str, state: Mapping[str, Any]) -> None:
    """Write a state to a file atomically; raise TypeError for an unsupported value.

    A state consists of dictionaries, lists, arrays of numbers, ``Statistics``, numbers, strings, booleans and None.
    """
    arrays: Arrays = {}
    facts = {"format": FORMAT, "kind": kind, "state": _encode(state, "", arrays)}
    text = json.dumps(facts, allow_nan=False).encode()
    stream = io.BytesIO()
    members: dict[str, Any] = {"facts": np.frombuffer(text, np.uint8), **arrays}
    np.savez(stream, **members)
    try:
        write_atomically(Path(path), stream.getvalue(), is_private=True)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror or error}") from None


def read_state_file(path: str | PathLike[str], kind: str) -> dict[str, Any]:
    """Read a state of one kind; refuse a truncated, newer or malicious file."""
    file = Path(path)
    require(file.is_file(), f"there is no file {file}")
    try:
        arrays = _read_members(file)
        facts = _read_json(arrays.pop("facts").tobytes())
        written, found, state = _read_facts(facts, arrays)
    except BROKEN as error:
        raise ValueError(f"{file} is not a complete state file of fedcascade: {describe_fault(error)}") from None
    require(written <= FORMAT, f"{file} has format {written}, this fedcascade reads {FORMAT}: update fedcascade")
    require(found == kind, f"{file} holds a state of kind '{found}', not '{kind}'")
    return state


def describe_fault(error: Exception) -> str:
    """Describe the error of reading a state in one line."""
    return f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def _read_json(text: bytes) -> Any:
    """Decode the facts, which take up to twelve times their size in memory, and 64 bytes for a list or an object."""
    require(len(text) <= MOST_FACTS, f"its facts have {len(text):,} bytes, more than {MOST_FACTS:,}")
    containers = text.count(b"[") + text.count(b"{")
    require(containers <= MOST_CONTAINERS, f"its facts hold {containers:,} lists, more than {MOST_CONTAINERS:,}")
    return json.loads(text)


def _read_facts(facts: Any, arrays: Arrays) -> tuple[int, str, dict[str, Any]]:
    """Return the format, the kind and the state, which is empty for a newer format."""
    require(isinstance(facts, dict), "its facts are not a JSON object")
    written = facts["format"]
    require(isinstance(written, int) and written >= 1, f"its format is {written!r}")
    if written > FORMAT:
        return written, "", {}
    state = _decode(facts["state"], arrays)
    require(isinstance(state, dict), "its state is not a JSON object")
    return written, str(facts["kind"]), state


def _read_members(path: Path) -> Arrays:
    """Return the arrays of an NPZ, which never take more memory than the file has on disk."""
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        names = [member.filename for member in members]
        require(len(set(names)) == len(names), "it names a member twice")
        for member in members:
            require(MEMBER.fullmatch(member.filename) is not None, f"it has a member {member.filename[:60]!r}")
            plain = member.compress_type == zipfile.ZIP_STORED and not member.flag_bits & 1
            require(plain, f"its member {member.filename} is compressed or encrypted")
        claimed = sum(member.file_size for member in members)
        require(claimed <= path.stat().st_size, f"it claims {claimed:,} bytes of members")
        return {member.filename.removesuffix(".npy"): _read_array(archive.read(member)) for member in members}


def _read_array(body: bytes) -> NDArray[Any]:
    """Read an NPY file into an array of numbers that owns its memory."""
    stream = io.BytesIO(body)
    require(npy.read_magic(stream) == (1, 0), "an array is not in NPY 1.0")
    shape, is_fortran, dtype = npy.read_array_header_1_0(stream)
    require(dtype.kind in KINDS_OF_NUMBERS and not dtype.hasobject, f"an array is of type {dtype}, not of numbers")
    start, size = stream.tell(), math.prod(shape) * dtype.itemsize
    require(min(shape, default=0) >= 0 and size == len(body) - start, f"an array of shape {shape} is cut")
    flat = np.frombuffer(body, dtype, offset=start)
    is_sound = dtype.kind != "b" or int(flat.view(np.uint8).max(initial=0)) <= 1
    require(is_sound, "an array of truth values holds other bytes than 0 and 1")
    return flat.reshape(shape, order="F" if is_fortran else "C").copy()


def _encode(value: Any, name: str, arrays: Arrays) -> Any:
    """Encode a value as JSON, with arrays moved to ``arrays`` under their path in the state."""
    match value:
        case np.generic():
            return _encode(value.item(), name, arrays)
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case np.ndarray():
            require(value.dtype.kind in KINDS_OF_NUMBERS, f"a state cannot hold {value.dtype}, as {name} does")
            arrays[name] = value
            return {"$array": name}
        case Statistics():
            return {"$statistics": _stack_statistics([value], name, arrays)}
        case dict() if value and all(isinstance(item, Statistics) for item in value.values()):
            arrays[f"{name}.keys"] = np.array(list(value), np.int64)
            return {"$pools": _stack_statistics(value.values(), name, arrays)}
        case dict() if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _encode(item, f"{name}.{key}".removeprefix("."), arrays) for key, item in value.items()}
        case list() | tuple() if value and all(isinstance(item, Statistics) for item in value):
            return {"$each": _stack_statistics(value, name, arrays)}
        case list() | tuple():
            return [_encode(item, f"{name}.{place}", arrays) for place, item in enumerate(value)]
    raise TypeError(f"a state cannot hold a {type(value).__name__}, as {name} is")


def _stack_statistics(statistics: Iterable[Statistics], name: str, arrays: Arrays) -> str:
    """Store statistics as three arrays, and return the prefix of their names."""
    each = list(statistics)
    arrays[f"{name}.gram"] = np.stack([item.gram for item in each])
    arrays[f"{name}.moment"] = np.stack([item.moment for item in each])
    arrays[f"{name}.counts"] = np.array([(item.count, item.clicks, item.rounds) for item in each], np.int64)
    if any(item.shortfall for item in each):
        arrays[f"{name}.shortfall"] = np.array([item.shortfall for item in each])
    return name


def _unstack_statistics(name: str, arrays: Arrays) -> list[Statistics]:
    gram, moment, counts = (arrays.pop(f"{name}.{part}") for part in ("gram", "moment", "counts"))
    d, kinds = moment.shape[-1], [each.dtype for each in (gram, moment, counts)]
    fits = gram.shape == (len(moment), d, d) and moment.ndim == 2 and counts.shape == (len(moment), 3)
    shortfall = arrays.pop(f"{name}.shortfall", np.zeros(len(moment)))
    fits = fits and shortfall.shape == (len(moment),) and shortfall.dtype == np.float64
    require(fits and kinds == [np.float64, np.float64, np.int64], f"the arrays of {name} do not fit together")
    sums = (Statistics(gram[i].copy(), moment[i].copy(), *counts[i].tolist()) for i in range(len(moment)))
    return [replace(each, shortfall=missing) for each, missing in zip(sums, shortfall.tolist(), strict=True)]


DECODERS: Mapping[str, Callable[[Any, Arrays], Any]] = {
    "$array": lambda name, arrays: arrays.pop(name),
    "$float": lambda text, _: float(text),
    "$statistics": lambda name, arrays: _unstack_statistics(name, arrays)[0],
    "$each": _unstack_statistics,
    "$pools": lambda name, arrays: dict(
        zip(arrays.pop(f"{name}.keys").tolist(), _unstack_statistics(name, arrays), strict=True)
    ),
}


def _decode(value: Any, arrays: Arrays) -> Any:
    if isinstance(value, list):
        return [_decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    [tag] = value if len(value) == 1 else [""]
    if tag in DECODERS:
        return DECODERS[tag](value[tag], arrays)
    return {key: _decode(item, arrays) for key, item in value.items()}
