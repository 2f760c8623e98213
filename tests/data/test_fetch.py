"""Fetching from a real server on this machine: checked, tried again, cached, and nothing half-written."""

import hashlib
import io
import json
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fedcascade.data import fetch as fetching
from fedcascade.data.fetch import fetch, find_cache_folder
from fedcascade.data.readers import read_ratings

RATINGS = "userId,movieId,rating,timestamp\n" + "".join(f"{n % 50},{n % 31},{1 + n % 5},9\n" for n in range(9_000))


def archive(**members: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:  # stored, so that there are many bytes to break
        for name, text in (members or {"ratings.csv": RATINGS, "README.txt": "terms", "movies.csv": "1,Ä"}).items():
            file.writestr(f"ml-latest-small/{name}", text)
    return packed.getvalue()


@dataclass
class Publisher:
    """What the server holds and how it misbehaves."""

    files: dict[str, bytes] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)  # bytes after which the next connections break
    asked: list[str] = field(default_factory=list)  # the path of every request
    address: str = ""

    def offer(self, content: bytes, md5: str | None = None) -> None:
        digest = md5 or hashlib.md5(content).hexdigest()
        self.files = {
            "/ml-latest-small.zip": content,
            "/ml-latest-small.zip.md5": f"MD5 (ml-latest-small.zip) = {digest}\n".encode(),
        }

    def count_archives(self) -> int:
        return sum(path.endswith(".zip") for path in self.asked)


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publisher]:
    held = Publisher()
    held.offer(archive())

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            held.asked.append(self.path)
            if self.path not in held.files:
                self.send_error(404)
                return
            content = held.files[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            breaks = self.path.endswith(".zip") and held.break_after
            self.wfile.write(content[: held.break_after.pop(0)] if breaks else content)

        def log_message(self, *_: object) -> None:
            pass

    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    held.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield held
    server.shutdown()
    thread.join()
    server.server_close()


def kept(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


WHOLE = {f"movielens-small/{name}" for name in ("ratings.csv", "README.txt", "fetched.json")}


def test_ratings_are_fetched_checked_and_recorded(publisher: Publisher, tmp_path: Path) -> None:
    dataset = fetch("movielens-small", source=publisher.address, folder=tmp_path)
    content = publisher.files["/ml-latest-small.zip"]
    assert dataset.sha256 == hashlib.sha256(content).hexdigest()
    assert dataset.md5 == hashlib.md5(content).hexdigest()
    assert (dataset.bytes, dataset.cached) == (len(content), False)
    assert dataset.ratings.read_text() == RATINGS
    assert dataset.terms.read_text() == "terms"
    assert kept(tmp_path) == WHOLE
    assert json.loads((tmp_path / "movielens-small" / "fetched.json").read_text())["sha256"] == dataset.sha256
    assert read_ratings(dataset.ratings).values.size == 9_000


def test_what_is_in_the_cache_is_not_fetched_again(publisher: Publisher, tmp_path: Path) -> None:
    first = fetch("movielens-small", source=publisher.address, folder=tmp_path)
    requests = len(publisher.asked)
    again = fetch("movielens-small", source=publisher.address, folder=tmp_path)
    assert len(publisher.asked) == requests
    assert (again.cached, again.sha256, again.ratings) == (True, first.sha256, first.ratings)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("ratings.csv", "userId,movieId,rating\n1,1,1\n"),
        ("README.txt", None),
        ("fetched.json", "{}"),
        ("fetched.json", "something else"),
    ],
)
def test_a_cache_that_was_changed_is_noticed(
    publisher: Publisher, tmp_path: Path, name: str, content: str | None
) -> None:
    fetch("movielens-small", source=publisher.address, folder=tmp_path)
    changed = tmp_path / "movielens-small" / name
    if content is None:
        changed.unlink()
    else:
        changed.write_text(content)
    with pytest.raises(ValueError, match="have changed since they were fetched: remove that folder"):
        fetch("movielens-small", source=publisher.address, folder=tmp_path)


def test_a_broken_connection_is_tried_again(publisher: Publisher, tmp_path: Path) -> None:
    publisher.break_after = [40_000, 0]
    dataset = fetch("movielens-small", source=publisher.address, folder=tmp_path)
    assert publisher.count_archives() == 3
    assert dataset.ratings.read_text() == RATINGS
    assert kept(tmp_path) == WHOLE


def test_a_connection_that_stays_broken_is_given_up_and_nothing_is_kept(publisher: Publisher, tmp_path: Path) -> None:
    publisher.break_after = [50_000] * fetching.ATTEMPTS
    with pytest.raises(ValueError, match=r"small\.zip: the connection broke"):
        fetch("movielens-small", source=publisher.address, folder=tmp_path)
    assert publisher.count_archives() == fetching.ATTEMPTS
    assert kept(tmp_path) == set()


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(publisher: Publisher, tmp_path: Path) -> None:
    publisher.offer(archive(), md5="0" * 32)
    with pytest.raises(ValueError, match=f"but its publisher says {'0' * 32}: fetch again"):
        fetch("movielens-small", source=publisher.address, folder=tmp_path)
    assert kept(tmp_path) == set()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"this is no zip file", "is not the expected archive: File is not a zip file"),
        (archive(**{"other.csv": "1,2"}), "is not the expected archive"),
        (archive(**{"ratings.csv": RATINGS}), "README.txt"),
    ],
)
def test_an_archive_that_is_another_is_refused(
    publisher: Publisher, tmp_path: Path, content: bytes, complaint: str
) -> None:
    publisher.offer(content)
    with pytest.raises(ValueError, match=complaint):
        fetch("movielens-small", source=publisher.address, folder=tmp_path)
    assert kept(tmp_path) == set()


def test_what_the_publisher_does_not_have_is_said(publisher: Publisher, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"ml-1m.zip.md5: the server answers 404"):
        fetch("movielens-1m", source=publisher.address, folder=tmp_path)
    publisher.files["/ml-1m.zip.md5"] = b"sorry, no checksum today"
    with pytest.raises(ValueError, match="must hold one MD5, got 'sorry"):
        fetch("movielens-1m", source=publisher.address, folder=tmp_path)
    publisher.files["/ml-1m.zip.md5"] = b"0" * 32
    with pytest.raises(ValueError, match=r"ml-1m.zip: the server answers 404"):
        fetch("movielens-1m", source=publisher.address, folder=tmp_path)
    assert kept(tmp_path) == set()


def test_a_server_that_is_not_there_is_said(tmp_path: Path, publisher: Publisher) -> None:
    with pytest.raises(ValueError, match=r"cannot fetch http://127\.0\.0\.1:1/ml-latest-small\.zip\.md5"):
        fetch("movielens-small", source="http://127.0.0.1:1", folder=tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="source must be an http or https address"):
        fetch("movielens-small", source="file:///etc", folder=tmp_path)
    with pytest.raises(ValueError, match="unknown dataset 'movielens-smal': did you mean 'movielens-small'"):
        fetch("movielens-smal", source=publisher.address, folder=tmp_path)


def test_the_cache_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_cache_folder() == tmp_path / "fedcascade"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the specification
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert find_cache_folder() == tmp_path / "home" / ".cache" / "fedcascade"
