"""Small made-up files of published formats become logs."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from fedcascade.data.logs import Log, read_log
from fedcascade.data.logs.items import read_items

CONVERT = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "published_logs.py"))["convert"]


def read_published(path: Path, form: str) -> Log:
    CONVERT(form, path, path.with_name("log.parquet"))
    return read_log(path.with_name("log.parquet"))


def test_yandex(tmp_path: Path) -> None:
    path = tmp_path / "yandex.txt"
    urls = "\t".join(str(url) for url in range(10, 20))
    path.write_text(
        f"0\t0\tQ\t7\t0\t{urls}\n0\t5\tC\t12\n0\t9\tC\t12\n0\t9\tC\t10\n1\t0\tQ\t7\t0\t{urls}\n1\t3\tC\t99\n"
    )
    log = read_published(path, "yandex")
    read = log.read()
    assert list(log.users) == ["0", "1"]
    assert np.flatnonzero(read.clicks[0]).tolist() == [0, 2]
    assert not read.clicks[1].any()
    path.write_text("0\t0\tX\n")
    with pytest.raises(ValueError, match="line 1 must be a query"):
        read_published(path, "yandex").read()


def test_open_bandit(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text(
        ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1\n"
        "0,2019-11-24 00:00:21.306718+00:00,79,2,0,0.0125,aa,bb\n"
        "1,2019-11-24 00:00:22.306718+00:00,14,1,1,0.0125,aa,cc\n"
    )
    read = read_published(path, "open-bandit").read()
    assert read.clicks.tolist() == [[False], [True]]
    assert read.users.tolist() == [0, 1]
    assert read.propensity is not None
    assert read.propensity.tolist() == [0.0125, 0.0125]
    assert read.times is not None
    assert read.times[1] - read.times[0] == pytest.approx(1.0)


def test_finn(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    slates = np.zeros((2, 3, 4), np.int32)
    slates[0, 0], slates[0, 1, :3], slates[1, 0, :3] = [1, 50, 51, 52], [1, 50, 53], [1, 60, 61]
    lengths = np.array([[4, 3, 0], [3, 0, 0]], np.int32)
    clicks = np.array([[2, 0, 0], [1, 0, 0]], np.int32)
    np.savez(path, userId=np.array([8, 9]), click_idx=clicks, slate_lengths=lengths, slate=slates)
    log = read_published(path, "finn")
    read = log.read()
    assert list(log.users) == ["8", "9"]
    assert read.lengths.tolist() == [3, 2, 2]
    assert [np.flatnonzero(row).tolist() for row in read.clicks] == [[1], [], [0]]


def test_playlists_of_deezer_are_a_table_of_items(tmp_path: Path) -> None:
    path = tmp_path / "playlist_features.csv"
    path.write_text("f0,f1\n3,4\n0,2\n")
    items = read_items(path, normalise=True)
    assert items.names == ("0", "1")
    assert items.features[1].tolist() == [0.0, 1.0]
