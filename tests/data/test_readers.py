"""Every format gives the same ratings, and what cannot be read is refused in one line that says where."""

import csv
import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from fedcascade import POLICIES
from fedcascade.data import readers
from fedcascade.data.readers import Columns, build_ratings_environment, read_ratings
from fedcascade.environments.matrices import Triplets
from fedcascade.environments.ratings import Ratings
from fedcascade.learning.oracles import TopK
from fedcascade.simulation import reference
from fedcascade.simulation.exact import engine as exact
from fedcascade.simulation.scenario import Scenario
from fedcascade.testing import check_environment

Rated = list[tuple[str, str, float]]


def some_ratings(count: int = 500) -> Rated:
    draw = np.random.default_rng(1)
    numbers = zip(draw.integers(5, 40, count), draw.integers(100, 160, count), draw.integers(1, 11, count), strict=True)
    return [(str(user), str(item), half / 2) for user, item, half in numbers]


def numbered(names: list[str]) -> list[int]:
    order = list(dict.fromkeys(names))
    return [order.index(name) for name in names]


def write_csv(path: Path, rated: Rated) -> None:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("userId", "movieId", "rating", "timestamp"), *((*row, 99) for row in rated)])


def write_reviews(path: Path, rated: Rated) -> None:
    lines = (
        json.dumps({"review_id": "r", "user_id": user, "business_id": item, "stars": stars, "text": 'nöt \\ "bad"\n'})
        for user, item, stars in rated
    )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_parquet(path: Path, rated: Rated) -> None:
    users, items, ratings = zip(*rated, strict=True)
    pl.DataFrame({"rating": ratings, "item_id": items, "user_id": [int(user) for user in users]}).write_parquet(path)


WRITERS = {
    "ratings.csv": write_csv,
    "ratings.dat": lambda path, rated: path.write_text("".join(f"{u}::{i}::{r}::99\n" for u, i, r in rated)),
    "u.data": lambda path, rated: path.write_text("".join(f"{u}\t{i}\t{r}\t99\n" for u, i, r in rated)),
    "ratings.tsv": lambda path, rated: path.write_text(
        "user\titem\trating\n" + "".join(f"{u}\t{i}\t{r}\n" for u, i, r in rated)
    ),
    "yelp_academic_dataset_review.json": write_reviews,
    "ratings.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_gives_the_same_ratings(name: str, tmp_path: Path) -> None:
    rated = some_ratings()
    WRITERS[name](tmp_path / name, rated)
    ratings = read_ratings(tmp_path / name)
    users, items, stars = zip(*rated, strict=True)
    assert ratings.users.tolist() == numbered(list(users))
    assert ratings.items.tolist() == numbered(list(items))
    assert ratings.values.tolist() == list(stars)


@pytest.mark.parametrize("name", ["likes.csv", "likes.jsonl", "likes.parquet"])
def test_columns_may_have_any_name(name: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"who": ["a", "b", "a"], "what": ["x", "x", "y"], "how": [1, 0, 3]})
    write: dict[str, Callable[[Path], object]] = {
        ".csv": frame.write_csv,
        ".jsonl": frame.write_ndjson,
        ".parquet": frame.write_parquet,
    }
    write[Path(name).suffix](tmp_path / name)
    ratings = read_ratings(tmp_path / name, columns=Columns("who", "what", "how"))
    assert [each.tolist() for each in ratings] == [[0, 1, 0], [0, 0, 1], [1.0, 0.0, 3.0]]
    with pytest.raises(ValueError, match="has no column user or"):
        read_ratings(tmp_path / name)


@pytest.mark.parametrize("name", ["ratings.csv", "ratings.json"])
def test_a_byte_order_mark_and_empty_lines_do_no_harm(name: str, tmp_path: Path) -> None:
    lines = {
        "ratings.csv": "user,item,rating\na,b, 3.5\n\na,c,4\n\n",
        "ratings.json": '{"user":"a","item":"b","rating":3.5}\n\n{"user":"a","item":"c","rating":4}\n\n',
    }
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + lines[name].encode())
    assert read_ratings(tmp_path / name).values.tolist() == [3.5, 4.0]


REVIEW = b'{"user_id": "a", "business_id": "b", "stars": 3.0, "text": "x"}\n'


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", b"user,item,rating\n1,2,3\n\xe9,3,4\n", "line 3 is not UTF-8 text"),
        ("a.csv", "user,item,rating\n1,2,3\n".encode("utf-16"), "line 1 is not UTF-8 text"),
        ("a.csv", "user,item,rating\n1,2,3\n".encode("utf-16-le"), "line 1 holds a NUL byte: it is not UTF-8 text"),
        ("a.csv", b"user,item,rating\n1,2,3\n\0,3,4\n", "line 3 holds a NUL byte"),
        ("a.csv", b"user,item,rating\n1,2,\xc3", "line 2 is not UTF-8 text"),
        ("a.csv", b"", "is empty"),
        ("a.csv", b"user,item,rating\n", "holds no ratings"),
        ("a.csv", b"user,item,rating\n1,2,3\n1,2,five\n", "line 3: the rating must be a number, got 'five'"),
        ("a.csv", b"user,item,rating\n1,2\n", "line 2: the rating must be a number, got nothing"),
        ("a.csv", b"user,item,rating\n\n1,2,nan\n", "line 3: the rating must be a number, got 'nan'"),
        ("a.csv", b"user,item,rating\n1,2,inf\n", "line 2: the rating must be a number, got 'inf'"),
        (
            "a.csv",
            b'user,text,item,rating\n1,"a\nb",2,3\n1,b,2,bad\n',
            "line 4: the rating must be a number, got 'bad'",
        ),
        ("a.csv", b"user,item,rating\n1,,3\n", "line 2 has no item"),
        ("a.csv", b"user,item,rating\n,2,3\n", "line 2 has no user"),
        ("a.csv", b"user,item,rating\n1,2,3\n1,2,3,4\n", "line 3 has 4 fields, but the header names 3"),
        ("a.csv", b"user,thing,rating\n1,2,3\n", "for item: it has user, thing, rating"),
        ("a.dat", b"1::2::3::9\n1::2::good::9\n", "line 2: the rating must be a number, got 'good'"),
        ("a.dat", b"1,2,3\n", "line 1 must hold user, item and rating, separated by ::"),
        ("u.data", b"1\t2\t3\t9\n1\t2\t\t9\n", "line 2: the rating must be a number, got nothing"),
        ("a.parquet", b"not parquet at all", "cannot be read: parquet"),
        ("a.json", b"", "holds no ratings"),
        ("a.json", REVIEW * 2 + REVIEW.replace(b"3.0", b'"five"'), "line 3: stars must be a number, got 'five'"),
        ("a.json", REVIEW + b"\n" + REVIEW.replace(b"3.0", b"null"), "line 3: stars must be a number, got None"),
        ("a.json", REVIEW + REVIEW.replace(b"3.0", b"true"), "line 2: stars must be a number, got True"),
        ("a.json", REVIEW + b'{"user_id": "a", "stars": 5}\n', "line 2 has no 'business_id'"),
        ("a.json", REVIEW + REVIEW.replace(b'"a"', b"[]"), "line 2: Expected"),
        ("a.json", REVIEW + b'{"user_id": "a"', "line 2 is not JSON"),
        ("a.json", REVIEW + b"[1, 2]\n", "line 2 is not a JSON object"),
        ("a.json", REVIEW + REVIEW.replace(b"3.0", b"1e999"), "line 2 is not JSON: Number out of range"),
        ("a.json", REVIEW + REVIEW.replace(b'"a"', b'"\xe9"'), "line 2 is not UTF-8 text"),
        ("a.json", REVIEW.decode().encode("utf-16"), "line 1 is not UTF-8 text"),
        ("a.json", b'[{"user_id": "a"},\n', "line 1 is not JSON"),
        ("a.txt", b"1 2 3\n", "must end in one of .csv"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(name: str, content: bytes, complaint: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name) as refused:
        read_ratings(tmp_path / name)
    assert complaint in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_number_that_is_text_in_parquet_is_read_and_a_word_is_refused_with_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pl.DataFrame({"user": [1, 1], "item": [2, 3], "rating": ["4", "good"]}).write_parquet(path)
    with pytest.raises(ValueError, match="row 2: the rating must be a number, got 'good'"):
        read_ratings(path)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no file"):
        read_ratings(tmp_path / "none.csv")
    with pytest.raises(ValueError, match="is a folder"):
        read_ratings(tmp_path)
    (tmp_path / "u.data").write_text("1\t2\t3\t9\n")
    with pytest.raises(ValueError, match="has no names of columns"):
        read_ratings(tmp_path / "u.data", columns=Columns("a", "b", "c"))


@pytest.mark.parametrize("chunk", [1, 100, 1 << 22])
def test_chunks_do_not_show(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK", chunk)
    path = tmp_path / "reviews.json"
    write_reviews(path, some_ratings(60))
    assert [each.tolist() for each in read_ratings(path)] == [each.tolist() for each in of(some_ratings(60))]
    with path.open("ab") as file:
        file.write(REVIEW.replace(b"3.0", b'"no"') + REVIEW)
    with pytest.raises(ValueError, match="line 61: stars must be a number, got 'no'"):
        read_ratings(path)


def of(rated: Rated) -> Triplets:
    users, items, stars = zip(*rated, strict=True)
    return Triplets(np.array(numbered(list(users))), np.array(numbered(list(items))), np.array(stars))


def test_a_file_without_line_breaks_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "CHUNK", 1_000)
    monkeypatch.setattr(readers, "LONGEST_LINE", 10_000)
    path = tmp_path / "reviews.json"
    path.write_bytes(REVIEW + b'{"text": "' + b"x" * 20_000)
    with pytest.raises(ValueError, match="has a line longer than 10,000 bytes"):
        read_ratings(path)


def test_memory_does_not_grow_with_the_text_of_reviews(tmp_path: Path) -> None:
    path = tmp_path / "reviews.json"
    with path.open("wb") as file:
        for _ in range(10_000):
            file.write(REVIEW.replace(b'"x"', b'"' + b"x" * 3_000 + b'"'))
    assert path.stat().st_size > 30_000_000
    tracemalloc.start()
    try:
        read_ratings(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * readers.CHUNK


def test_a_world_from_a_file_is_the_world_of_its_ratings(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    write_csv(path, some_ratings(1_500))
    options: dict[str, Any] = {"users": 10, "clusters": 3, "dimension": 5, "items": 20, "seed": 4}
    one, other = build_ratings_environment(path, **options), Ratings(of(some_ratings(1_500)), **options)
    np.testing.assert_array_equal(one.thetas, other.thetas)
    np.testing.assert_array_equal(one.items(9), other.items(9))


def test_movielens_is_read(movielens: Path) -> None:
    ratings = read_ratings(movielens)
    assert (ratings.values.size, np.unique(ratings.users).size, np.unique(ratings.items).size) == (100_836, 610, 9_724)
    assert set(np.unique(ratings.values)) == {half / 2 for half in range(1, 11)}
    with movielens.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["rating"]) for row in rows] == ratings.values.tolist()


@pytest.mark.parametrize("preset", ["catalogue", "paper"])
@pytest.mark.parametrize("name", ["fedc3ucb-h", "fedind"])
def test_movielens_is_a_world_in_which_both_engines_agree(movielens: Path, preset: str, name: str) -> None:
    world = build_ratings_environment(movielens, preset=preset)
    check_environment(world, rounds=10)
    runs = [
        engine.simulate(Scenario(world, POLICIES[name], rounds=600, oracle=TopK(length=4), keep_lists=True))
        for engine in (exact, reference)
    ]
    assert runs[0].curve == runs[1].curve
    np.testing.assert_array_equal(runs[0].lists, runs[1].lists)


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffuserId,movieId,rating\na,x,4\nb,x,2\n",
        "userId;movieId;rating\na;x;4\nb;x;2\n",
        "userId|movieId|rating\na|x|4\nb|x|2\n",
        " userId , movieId , rating \na,x,4\nb,x,2\n",
        "userId,movieId,rating\ra,x,4\rb,x,2\r",
    ],
)
def test_messy_headers_separators_and_line_ends_are_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ratings.csv"
    path.write_bytes(text.encode())
    ratings = read_ratings(path)
    assert (ratings.users.tolist(), ratings.items.tolist(), ratings.values.tolist()) == ([0, 1], [0, 0], [4.0, 2.0])


def test_packed_ratings_are_read(tmp_path: Path) -> None:
    text = b"userId,movieId,rating\na,x,4\nb,x,2\n"
    (tmp_path / "ratings.csv.gz").write_bytes(gzip.compress(text))
    assert read_ratings(tmp_path / "ratings.csv.gz").values.tolist() == [4.0, 2.0]
    (tmp_path / "ratings.csv").write_bytes(text)
    pl.scan_csv(tmp_path / "ratings.csv").sink_csv(tmp_path / "ratings.csv.zst", compression="zstd")
    assert read_ratings(tmp_path / "ratings.csv.zst").values.tolist() == [4.0, 2.0]
    (tmp_path / "r.jsonl.gz").write_bytes(gzip.compress(b'{"user": 1, "item": 2, "rating": 3}\n'))
    assert read_ratings(tmp_path / "r.jsonl.gz").values.tolist() == [3.0]
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(text)[:-9])
    with pytest.raises(ValueError, match=r"cannot read .*cut\.csv\.gz"):
        read_ratings(tmp_path / "cut.csv.gz")
    (tmp_path / "ratings.parquet.gz").write_bytes(b"x")
    with pytest.raises(ValueError, match="must be decompressed first"):
        read_ratings(tmp_path / "ratings.parquet.gz")


def test_a_column_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,item,rating,user\na,x,4,b\n")
    with pytest.raises(ValueError, match="names a column twice"):
        read_ratings(tmp_path / "ratings.csv")
