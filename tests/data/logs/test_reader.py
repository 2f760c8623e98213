"""Every format gives the same log, and what cannot be read is refused in one line with file, row and column."""

import gzip
import json
import re
import tracemalloc
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fedcascade.data.logs import read_log, write_log
from fedcascade.data.logs.items import read_items
from fedcascade.learning.click_log import ClickLog, concatenate

HEADER = "time,user,items,clicks,looked,propensity,propensities,offered\n"
ROWS = [
    '2024-05-01T10:00:00,ann,a b c,1,2,0.125,0.5 0.5 0.5,a b c d\n',
    '2024-05-01T10:00:01,bob,b d,,,0.25,0.5 0.5,d c b a\n',
    '2024-05-01T10:00:02,ann,d c a,0 2,3,0.0625,0.25 0.5 0.5,a b c d\n',
]  # fmt: skip


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    path = tmp_path / "log.csv"
    path.write_text(HEADER + "".join(ROWS))
    return path


def as_lists(log: ClickLog) -> dict[str, object]:
    return {name: None if column is None else column.tolist() for name, column in vars(log).items()}


def test_a_csv_is_read_into_columns(plain: Path) -> None:
    log = read_log(plain)
    read = log.read()
    assert list(log.users) == ["ann", "bob"]
    assert list(log.items) == ["a", "b", "c", "d"]
    assert read.items.tolist() == [[0, 1, 2], [1, 3, -1], [3, 2, 0]]
    assert read.clicks.tolist() == [[False, True, False], [False] * 3, [True, False, True]]
    assert read.looked is not None
    assert read.looked.tolist() == [2, -1, 3]
    assert read.count_looked().tolist() == [2, 2, 3]
    assert read.times is not None
    assert np.diff(read.times).tolist() == [1.0, 1.0]
    assert read.list_propensity is not None
    assert read.list_propensity.tolist() == [0.125, 0.25, 0.0625]


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_what_is_written_is_read(plain: Path, tmp_path: Path, ending: str) -> None:
    log = read_log(plain)
    read = log.read()
    copy = tmp_path / f"copy{ending}"
    write_log(copy, read, users=list(log.users), items=list(log.items))
    assert as_lists(read_log(copy).read()) == as_lists(read)


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".jsonl"])
def test_inline_features_are_written_and_read(tmp_path: Path, ending: str) -> None:
    features = np.zeros((2, 2, 3), np.float32)
    features[0] = [[0.5, 0, 0], [0, 0.25, 0]]
    features[1, 0] = [0, 0, 1]
    log = ClickLog(
        users=np.array([0, 1]), items=np.array([[0, 1], [2, -1]]), clicks=np.zeros((2, 2), bool), features=features
    )
    write_log(tmp_path / f"log{ending}", log)
    assert as_lists(read_log(tmp_path / f"log{ending}").read()) == as_lists(log)


def test_packed_files_are_read(plain: Path, tmp_path: Path) -> None:
    wanted = as_lists(read_log(plain).read())
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert as_lists(read_log(packed).read()) == wanted
    pl.scan_csv(plain, infer_schema=False).sink_csv(tmp_path / "log.csv.zst", compression="zstd")
    assert as_lists(read_log(tmp_path / "log.csv.zst").read()) == wanted
    write_log(tmp_path / "log.jsonl", read_log(plain).read())
    rows = (tmp_path / "log.jsonl").read_bytes()
    (tmp_path / "log.jsonl.gz").write_bytes(gzip.compress(rows))
    assert as_lists(read_log(tmp_path / "log.jsonl.gz").read())["clicks"] == wanted["clicks"]
    (tmp_path / "log.parquet.gz").write_bytes(b"x")
    with pytest.raises(ValueError, match="decompress the file first"):
        read_log(tmp_path / "log.parquet.gz")


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffuser,items,clicks\nann,a b,0\nbob,b,\n",
        "user;items;clicks\nann;a b;0\nbob;b;\n",
        "user\titems\tclicks\nann\ta b\t0\nbob\tb\t\n",
        " user , items , clicks \nann,a b,0\nbob,b,none\n",
        "user,items,clicks\r\nann,a b,0\r\nbob,b,\r\n",
        "user,items,clicks\rann,a b,0\rbob,b,\r",
        'uid,slate,click\nann,"[a, b]",[0]\n\nbob,[b],[]\n',
        "user,items,clicks\nann,a|b,0\nbob,b,-1\n",
    ],
)
def test_messy_text_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.csv"
    path.write_bytes(text.encode())
    log = read_log(path)
    read = log.read()
    assert list(log.users) == ["ann", "bob"]
    assert read.items.tolist() == [[0, 1], [1, -1]]
    assert read.clicks.tolist() == [[True, False], [False, False]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("user,items,clicks\nann,a b,0\nann,a b,2\n", "row 2, column clicks: must hold positions of the list"),
        ("user,items,clicks\nann,a a,0\n", "row 1, column items: must not name an item twice, got a a"),
        ("user,items,clicks\nann,a b,first\n", "row 1, column clicks: must hold positions, whole numbers"),
        ("user,items,clicks\n,a b,0\n", "row 1, column user: must name a user"),
        ("user,items,clicks\nann,,0\n", "row 1, column items"),
        ("user,items,clicks\nann,a b,0,7\n", "line 2 has 4 fields, but the header names 3"),
        ("user,items,clicks,user\nann,a,0,1\n", "names a column twice"),
        ("user,items\nann,a\n", "has no column clicks or click"),
        ("user,items,clicks\n", "holds no lists"),
        ("", "is empty"),
        ("user,items,clicks\nann,a\0b,0\n", "line 2 holds a NUL byte"),
        ("user,items,clicks,propensity\nann,a b,0,0.5\nann,a,0,0\n", r"row 2, column propensity: .* \(0, 1\], got 0"),
        ("user,items,clicks,propensity\nann,a b,0,\n", "column propensity: must be a number"),
        ("user,items,clicks,propensities\nann,a b,0,0.5\n", "column propensities: must hold a number for each item"),
        ("user,items,clicks,propensities\nann,a b,0,0.5 1.5\n", "column propensities"),
        ("user,items,clicks,looked\nann,a b,1,1\n", "column looked: must count positions"),
        ("user,items,clicks,offered\nann,a b,1,a c\n", "column offered: must name all items of the list"),
        ("user,items,clicks,features\nann,a b,1,0.5 0 0\n", "column features: must hold equally many numbers"),
        ("user,items,clicks,features\nann,a b,1,0.5 0\nann,a,,1 0\n", "row 2, column features: must hold 1 numbers"),
        ("user,items,clicks,features\nann,a b,1,0.5 3\n", "row 1, column features: .* norm <= 1, got norm 3"),
        ("user,items,clicks,time\nann,a,0,yesterday\n", "column time: must be a number or a date, got yesterday"),
    ],
)
def test_bad_rows_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=words) as refusal:
        read_log(path).read()
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_late_nul_bytes_are_named(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks\n" + "ann,a b,0\n" * 10_000 + "b\0b,a b,0\n")
    with pytest.raises(ValueError, match="row 10001, column user: must not hold a NUL byte"):
        read_log(path).read()


def test_batches_keep_their_numbers(plain: Path) -> None:
    log = read_log(plain)
    batches = list(log.batches(rows=1))
    assert as_lists(concatenate(batches))["items"] == as_lists(log.read())["items"]
    again = list(log.batches(rows=1))
    assert [batch.users.tolist() for batch in again] == [batch.users.tolist() for batch in batches]


def test_json_may_hold_numbers_and_lists(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    rows = [{"user": 1, "items": [7, 8], "clicks": 1}, {"user": 2, "items": [8], "clicks": None}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    log = read_log(path)
    assert log.read().clicks.tolist() == [[False, True], [False, False]]
    assert list(log.items) == ["7", "8"]


def test_a_table_of_items_gives_numbers_and_features(plain: Path, tmp_path: Path) -> None:
    table = tmp_path / "items.csv"
    table.write_text("item,x,y\nd,1,0\nc,0,1\nb,0.5,0.5\na,0,0\n")
    items = read_items(table)
    assert read_log(plain, items=items).read().items[0].tolist() == [3, 2, 1]
    table.write_text("item,x,y\nd,1,0\nc,0,1\nb,0.5,0.5\n")
    with pytest.raises(ValueError, match="row 1, column items: must name items of the table of items, got a"):
        read_log(plain, items=read_items(table)).read()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("item,x\na,1\na,0.5\n", "row 2, column item: a is repeated"),
        ("item,x\na,far\n", "row 1, column x: must be a number, got far"),
        ("item,x\na,4\n", "row 1: features must be finite with norm <= 1, got norm 4; --normalise"),
        ("item\na\n", "no column of features"),
    ],
)
def test_bad_tables_of_items_are_refused(tmp_path: Path, text: str, words: str) -> None:
    table = tmp_path / "items.csv"
    table.write_text(text)
    with pytest.raises(ValueError, match=words):
        read_items(table)


def test_memory_does_not_grow_with_the_log(tmp_path: Path) -> None:
    peaks = []
    for lists in (20_000, 80_000):
        path = tmp_path / f"log{lists}.parquet"
        pl.DataFrame(
            {"user": np.arange(lists) % 7, "items": [[1, 2, 3]] * lists, "clicks": [[1]] * lists}
        ).write_parquet(path, row_group_size=5_000)
        tracemalloc.start()
        assert sum(len(batch) for batch in read_log(path).batches(5_000)) == lists
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_a_log_is_read_in_order_of_time(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("time,user,items,clicks\n2024-05-03,ann,a b,0\n2024-05-01,bob,b,\n2024-05-02,eve,b a,1\n")
    log = read_log(path)
    assert [batch.users.tolist() for batch in log.batches(rows=2)] != [[]]
    assert list(log.users) == ["bob", "eve", "ann"]
    assert log.list_notes() == [f"{path} is not in order of time: it was sorted (2 of 3 rows were late)"]
    assert log.count() == 3
    path.write_text("time,user,items,clicks\n1,ann,a b,0\n1,bob,b,\n2,eve,b a,1\n")
    assert read_log(path).list_notes() == []
    path.write_text("time,user,items,clicks\n3,ann,a b,0\n1,bob,b,\n2,eve,b a,7\n")
    with pytest.raises(ValueError, match="row 3, column clicks"):
        read_log(path).read()


@pytest.mark.parametrize(
    "text",
    [
        "user,items,clicks\nann lee,green tea|milk,0\nbob,green tea,\n",
        "user;items;clicks\nann lee; green tea | milk ;0\nbob;green tea;\n",
        """user;items;clicks\nann lee;['green tea', 'milk'];0\nbob;["green tea"];\n""",
        'user\titems\tclicks\nann lee\t"[""green tea"", ""milk""]"\t0\nbob\t"[""green tea""]"\t\n',
    ],
)
def test_names_may_hold_spaces(tmp_path: Path, text: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(text)
    log = read_log(path)
    assert log.read().items.tolist() == [[0, 1], [0, -1]]
    assert (list(log.users), list(log.items)) == (["ann lee", "bob"], ["green tea", "milk"])


def test_names_with_spaces_and_bars_are_written_and_read(tmp_path: Path) -> None:
    log = ClickLog(users=np.array([0, 1]), items=np.array([[0, 1], [2, -1]]), clicks=np.zeros((2, 2), bool))
    items = ["green tea", "men's shoes", "a|b"]
    for ending in (".csv", ".jsonl", ".parquet"):
        path = tmp_path / f"log{ending}"
        write_log(path, log, users=["ann lee", "bob"], items=items)
        again = read_log(path)
        assert again.read().items.tolist() == log.items.tolist()
        assert (list(again.users), list(again.items)) == (["ann lee", "bob"], items)


def test_bad_rows_are_skipped_counted_and_named(tmp_path: Path) -> None:
    clean, dirty = tmp_path / "clean.csv", tmp_path / "dirty.csv"
    header, good = "time,user,items,clicks\n", [f"{t},u{t % 3},a b,{t % 2}\n" for t in range(20)]
    bad = ["1,,a b,0\n", "2,u1,a b,5\n", "x,u1,a b,0\n", "3,u1,a b,0,9,9\n", "4,u1,zz,0\n", "5,u2,a b,6\n"]
    clean.write_text(header + "".join(good))
    dirty.write_text(header + "".join(good[:7] + bad[:3] + good[7:] + bad[3:]))
    table = tmp_path / "items.csv"
    table.write_text("item,x\na,1\nb,0.5\n")
    wanted = read_log(clean, items=read_items(table)).read()
    log = read_log(dirty, items=read_items(table), skip_invalid=True)
    assert log.count() == 20
    assert as_lists(log.read()) == as_lists(wanted)
    assert sum(count for count, _ in log.skipped.values()) == 6
    assert log.skipped["clicks: must hold positions of the list, counted from 0"] == (
        2, "row 9, column clicks: must hold positions of the list, counted from 0, got 5"
    )  # fmt: skip
    _, first, *others = log.list_notes()
    assert (
        first == "skipped 2 rows such as row 9, column clicks: must hold positions of the list, counted from 0, got 5"
    )
    assert "skipped 1 rows such as row 24, column more fields than the header names: must be absent, got 9" in others
    assert len(others) == 4
    dirty.write_text(header + "".join(bad[:3]))
    with pytest.raises(ValueError, match="holds no lists that can be read: skipped 1 rows such as row"):
        read_log(dirty, skip_invalid=True).read()


def test_rows_with_bad_features_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("user,items,clicks,features\na,1 2,0,0.5 0\na,1,,1 0\na,1 2,0,3 0\na,1,,nan\nb,2,0,0.25\n")
    log = read_log(path, skip_invalid=True)
    read = log.read()
    assert read.features is not None
    assert read.features[:, :, 0].tolist() == [[0.5, 0.0], [0.25, 0.0]]
    assert {count for count, _ in log.skipped.values()} == {1, 2}


EVENTS = """user_id,ts,request_id,item_id,rank,is_click,propensity
ann lee,5,r2,green tea,2,0,0.5
ann lee,5,r2,milk,1,1,0.25
bob,1,r1,cake,1,,0.25
bob,1,r1,green tea,2,true,0.5
bob,1,r1,green tea,2,false,0.5
"""


def test_events_become_lists(tmp_path: Path) -> None:
    path = tmp_path / "events.csv"
    path.write_text(EVENTS)
    log = read_log(path)
    read = log.read()
    assert (list(log.users), list(log.items)) == (["bob", "ann lee"], ["cake", "green tea", "milk"])
    assert read.items.tolist() == [[0, 1], [2, 1]]
    assert read.clicks.tolist() == [[False, True], [True, False]]
    assert read.propensities is not None
    assert read.propensities.tolist() == [[0.25, 0.5], [0.25, 0.5]]
    bad = "".join(
        f"eve,9,{row}\n" for row in ("r3,,1,1,0.5", "r4,milk,x,0,0.5", "r5,milk,1,maybe,0.5", "r6,milk,1,0,0")
    )
    path.write_text(EVENTS + bad + "eve,9,r7,milk,1,0,0.5\nann,9,r7,cake,2,0,0.5\n")
    with pytest.raises(ValueError, match="request 3, column items: must name every item of the list"):
        read_log(path).read()
    log = read_log(path, skip_invalid=True)
    assert as_lists(log.read()) == as_lists(read)
    assert sum(count for count, _ in log.skipped.values()) == 5


def test_events_without_requests_are_lists_of_one_item(tmp_path: Path) -> None:
    path = tmp_path / "log_random.csv"  # as KuaiRand has them
    path.write_text(
        "user_id,video_id,date,hourmin,time_ms,is_click\n0,5,20220422,700,1650582042000,1\n0,9,2,7,1650582043000,0\n"
    )
    log = read_log(path)
    assert log.read().clicks.tolist() == [[True], [False]]
    assert list(log.items) == ["5", "9"]


REWARDED = (
    "user,items,clicks,reward\nann,tea cake milk,1,0.25\nbob,milk cake,,\n"
    "ann,cake tea,0 1,0.5\nbob,tea milk,0 1,0.1 0.9\nann,tea,0,\n"
)


def test_rewards_are_read_for_each_click_or_shared_and_written(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(REWARDED, encoding="utf-8")
    [batch] = read_log(path).batches()
    expected = [[0, 0.25, 0], [0, 0, 0], [0.25, 0.25, 0], [0.1, 0.9, 0], [1, 0, 0]]
    assert batch.values.tolist() == expected
    for ending in (".parquet", ".csv", ".jsonl"):
        write_log(tmp_path / f"again{ending}", batch)
        [again] = read_log(tmp_path / f"again{ending}").batches()
        assert again.values.tolist() == expected


def test_a_log_without_rewards_has_none(plain: Path) -> None:
    batch = next(read_log(plain).batches())
    assert batch.rewards is None
    np.testing.assert_array_equal(batch.values, batch.clicks)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("ann,tea cake,1,1.5", "must hold numbers in [0, 1], got 1.5"),
        ("ann,tea cake,1,-0.1", "must hold numbers in [0, 1], got -0.1"),
        ("ann,tea cake,1,nan", "must hold numbers in [0, 1], got nan"),
        ("ann,tea cake,0 1,0.5 nan", "must hold numbers in [0, 1], got 0.5 nan"),
        ("ann,tea cake,1,much", "must hold numbers in [0, 1], got much"),
        ("ann,tea cake,1,0.1 0.2", "must hold one number for all clicks of a list, or one for each, got 0.1 0.2"),
        ("ann,tea cake,,0.5", "must be 0 or empty without a click, got 0.5"),
    ],
)
def test_bad_rewards_are_refused_in_one_line(tmp_path: Path, row: str, words: str) -> None:
    path = tmp_path / "log.csv"
    path.write_text(f"{REWARDED}{row}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(f"row 6, column rewards: {words}")) as caught:
        list(read_log(path).batches())
    assert "\n" not in str(caught.value)
