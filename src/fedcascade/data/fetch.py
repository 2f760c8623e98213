"""Fetch public ratings from their publisher, once: checked, resumed where a connection broke, kept in a cache."""

import hashlib
import json
import os
import re
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from fedcascade import __version__
from fedcascade.checks import require, require_known
from fedcascade.systems import write_atomically

PUBLISHER = "https://files.grouplens.org/datasets/movielens"
CHUNK = 1 << 16
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 5  # connections in a row that break without having brought a byte
PAUSE = 1.0  # seconds to wait after such a one, longer each time

Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """What a publisher offers: an archive, and the files in it that are kept."""

    archive: str
    ratings: str
    terms: str
    licence: str


DATASETS = {
    "movielens-small": Dataset(
        archive="ml-latest-small.zip",
        ratings="ml-latest-small/ratings.csv",
        terms="ml-latest-small/README.txt",
        licence="GroupLens, University of Minnesota: for research, with acknowledgement; redistribution only under the "
        "same terms; no commercial use without permission. It changes over time: not for published results.",
    ),
    "movielens-1m": Dataset(
        archive="ml-1m.zip",
        ratings="ml-1m/ratings.dat",
        terms="ml-1m/README",
        licence="GroupLens, University of Minnesota: for research, with acknowledgement; no redistribution and no "
        "commercial use without permission.",
    ),
}


@dataclass(frozen=True, kw_only=True)
class FetchedDataset:
    """Paths of the files of a dataset, its licence, and the archive that it came from."""

    ratings: Path
    terms: Path
    licence: str
    url: str
    md5: str
    sha256: str
    bytes: int
    cached: bool


def find_cache_folder() -> Path:
    """Return the user's cache folder, as the XDG base directories say."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache") / "fedcascade"


def fetch(
    name: str, *, source: str = PUBLISHER, folder: Path | None = None, progress: Progress | None = None
) -> FetchedDataset:
    """Return the files of a dataset, from the cache or else from the publisher.

    The archive is checked against the MD5 that the publisher has beside it, and its SHA-256 is recorded. What a
    broken connection brought is kept, and the next attempt, or the next call, goes on from there.

    Args:
        name: a key of ``DATASETS``.
        source: the address of the folder that holds the archives.
        folder: where to keep it; the user's cache folder if None.
        progress: called with the bytes that have arrived and the bytes in all.
    """
    require_known("dataset", name, DATASETS)
    require(source.startswith(("http://", "https://")), f"source must be an http or https address, got '{source}'")
    dataset, home = DATASETS[name], (folder or find_cache_folder()) / name
    record = home / "fetched.json"
    try:
        cached = record.exists()
        if not cached:
            _download(dataset, f"{source.rstrip('/')}/{dataset.archive}", home, record, progress)
        return _load_fetched(dataset, home, record, cached=cached)
    except OSError as error:
        raise ValueError(f"cannot keep {name} in {home}: {error.strerror or error}") from None


def _load_fetched(dataset: Dataset, home: Path, record: Path, *, cached: bool) -> FetchedDataset:
    ratings, terms = (home / Path(name).name for name in (dataset.ratings, dataset.terms))
    try:
        facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        archive = {key: facts[key] for key in ("url", "md5", "sha256", "bytes")}
        is_intact = all(_hash_file(file, "sha256") == facts["files"][file.name] for file in (ratings, terms))
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        is_intact = False
    require(is_intact, f"the files in {home} are not those that were fetched: remove that folder and fetch again")
    return FetchedDataset(ratings=ratings, terms=terms, licence=dataset.licence, cached=cached, **archive)


def _download(dataset: Dataset, url: str, home: Path, record: Path, progress: Progress | None) -> None:
    expected = _fetch_published_md5(f"{url}.md5")
    home.mkdir(parents=True, exist_ok=True)
    part = home / f"{dataset.archive}.part"
    _download_archive(url, part, progress)
    md5 = _hash_file(part, "md5")
    facts = {"url": url, "md5": md5, "sha256": _hash_file(part, "sha256"), "bytes": _measure_size(part)}
    try:
        require(md5 == expected, f"{url} has MD5 {md5}, but its publisher says {expected}: not kept, try again")
        contents = _extract_members(part, (dataset.ratings, dataset.terms), url)
    finally:
        part.unlink()
    for name, content in contents.items():
        write_atomically(home / name, content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    write_atomically(record, json.dumps(facts | {"files": digests}, indent=2).encode())


def _fetch_published_md5(url: str) -> str:
    try:
        with _open(url) as response:
            text = response.read(4096).decode("ascii", "replace")
    except (OSError, HTTPException) as error:
        raise ValueError(f"cannot fetch {url}: {_describe_error(error)}") from None
    digests = re.findall(r"\b[0-9a-fA-F]{32}\b", text)
    require(len(digests) == 1, f"{url} must hold one MD5, got '{text[:80].strip()}'")
    return str(digests[0]).lower()


def _download_archive(url: str, part: Path, progress: Progress | None) -> None:
    """Fetch until the whole archive is in ``part``; connections may break as long as each brings something."""
    idle = 0
    while True:
        before = _measure_size(part)
        try:
            if _append_missing(url, part, progress):
                return
            reason = "the connection broke"
        except urllib.error.HTTPError as error:
            raise ValueError(f"cannot fetch {url}: {_describe_error(error)}") from None
        except (urllib.error.URLError, ConnectionError, TimeoutError, HTTPException) as error:
            reason = _describe_error(error)
        idle = idle + 1 if _measure_size(part) <= before else 0
        advice = f"{_measure_size(part):,} bytes are kept, the same command goes on"
        require(idle < ATTEMPTS, f"cannot fetch {url}: {reason}; {advice}")
        time.sleep(PAUSE * idle)


def _append_missing(url: str, part: Path, progress: Progress | None) -> bool:
    """Append what is missing of the archive to ``part``; returns whether it is complete."""
    start = _measure_size(part)
    try:
        response = _open(url, start)
    except urllib.error.HTTPError as error:
        if error.code == 416 and start:  # nothing is missing, or the archive has become shorter: the MD5 will tell
            return True
        raise
    with response, part.open("ab") as file:
        is_continuation = response.headers.get("Content-Range", "").startswith(f"bytes {start}-")
        if start and not (response.status == 206 and is_continuation):
            file.truncate(0)
            start = 0
        total = start + int(response.headers.get("Content-Length", "0"))
        while chunk := response.read(CHUNK):
            file.write(chunk)
            start += len(chunk)
            if progress is not None:
                progress(start, max(total, start))
    return start >= total


def _open(url: str, start: int = 0) -> HTTPResponse:
    headers = {"User-Agent": f"fedcascade/{__version__}"} | ({"Range": f"bytes={start}-"} if start else {})
    response: HTTPResponse = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=TIMEOUT)
    return response


def _describe_error(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(getattr(error, "reason", "") or error) or type(error).__name__


def _extract_members(archive: Path, members: tuple[str, ...], url: str) -> dict[str, bytes]:
    """Return the contents of members of a ZIP archive, by their names without folders."""
    try:
        with zipfile.ZipFile(archive) as packed:
            return {Path(member).name: packed.read(member) for member in members}
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{url} is not the archive that was expected: {error}") from None


def _hash_file(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _measure_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
