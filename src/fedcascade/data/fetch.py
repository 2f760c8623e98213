"""Download of public ratings from their publisher, with checksums and a cache."""

import hashlib
import io
import json
import os
import re
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead
from pathlib import Path
from typing import Any

from fedcascade import __version__
from fedcascade.checks import require, require_known
from fedcascade.platforms import write_atomically

PUBLISHER = "https://files.grouplens.org/datasets/movielens"
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3
PAUSE = 1.0  # seconds between two attempts


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """An archive of a publisher, and the files to keep from it."""

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
    """The files of a dataset, its licence, and its archive."""

    ratings: Path
    terms: Path
    licence: str
    url: str
    md5: str
    sha256: str
    bytes: int
    cached: bool


def find_cache_folder() -> Path:
    """Return the user's cache folder, by the XDG base directories."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(configured) if Path(configured).is_absolute() else Path.home() / ".cache") / "fedcascade"


def fetch(name: str, *, source: str = PUBLISHER, folder: Path | None = None) -> FetchedDataset:
    """Return the files of a dataset, from the cache or else from the publisher.

    Checks the archive against the publisher's MD5, and records its SHA-256.

    Args:
        name: a key of ``DATASETS``.
        source: the URL of the folder with the archives.
        folder: where to store the files; the user's cache folder if None.
    """
    require_known("dataset", name, DATASETS)
    require(source.startswith(("http://", "https://")), f"source must be an http or https address, got '{source}'")
    dataset, home = DATASETS[name], (folder or find_cache_folder()) / name
    record = home / "fetched.json"
    try:
        cached = record.exists()
        if not cached:
            _download(dataset, f"{source.rstrip('/')}/{dataset.archive}", record)
        return _load_fetched(dataset, home, record, cached=cached)
    except OSError as error:
        raise ValueError(f"cannot store {name} in {home}: {error.strerror or error}") from None


def _load_fetched(dataset: Dataset, home: Path, record: Path, *, cached: bool) -> FetchedDataset:
    ratings, terms = (home / Path(name).name for name in (dataset.ratings, dataset.terms))
    try:
        facts: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        archive = {key: facts[key] for key in ("url", "md5", "sha256", "bytes")}
        is_intact = all(_digest(file.read_bytes()) == facts["files"][file.name] for file in (ratings, terms))
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        is_intact = False
    require(is_intact, f"the files in {home} have changed since they were fetched: remove that folder and fetch again")
    return FetchedDataset(ratings=ratings, terms=terms, licence=dataset.licence, cached=cached, **archive)


def _download(dataset: Dataset, url: str, record: Path) -> None:
    expected = _fetch_published_md5(f"{url}.md5")
    archive = _read(url)
    md5 = hashlib.md5(archive, usedforsecurity=False).hexdigest()
    require(md5 == expected, f"{url} has MD5 {md5}, but its publisher says {expected}: fetch again")
    contents = _extract_members(archive, (dataset.ratings, dataset.terms), url)
    for name, content in contents.items():
        write_atomically(record.parent / name, content)
    facts = {"url": url, "md5": md5, "sha256": _digest(archive), "bytes": len(archive)}
    digests = {name: _digest(content) for name, content in contents.items()}
    write_atomically(record, json.dumps(facts | {"files": digests}, indent=2).encode())


def _fetch_published_md5(url: str) -> str:
    text = _read(url).decode("ascii", "replace")
    digests = re.findall(r"\b[0-9a-fA-F]{32}\b", text)
    require(len(digests) == 1, f"{url} must hold one MD5, got '{text[:80].strip()}'")
    return str(digests[0]).lower()


def _read(url: str) -> bytes:
    """Return the content of a URL; retry after connection errors."""
    request = urllib.request.Request(url, headers={"User-Agent": f"fedcascade/{__version__}"})
    reason = ""
    for attempt in range(ATTEMPTS):
        time.sleep(PAUSE * attempt)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                content: bytes = response.read()
                return content
        except urllib.error.HTTPError as error:
            raise ValueError(f"cannot fetch {url}: the server answers {error.code} {error.reason}") from None
        except IncompleteRead:
            reason = "the connection broke"
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", "") or error) or type(error).__name__
    raise ValueError(f"cannot fetch {url}: {reason}")


def _extract_members(archive: bytes, members: tuple[str, ...], url: str) -> dict[str, bytes]:
    """Return the contents of members of a ZIP archive, by their names without folders."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            return {Path(member).name: packed.read(member) for member in members}
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(f"{url} is not the expected archive: {error}") from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
