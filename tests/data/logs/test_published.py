"""Small made-up files of published formats become logs."""

from pathlib import Path

import numpy as np
import pytest

from fedcascade.data.logs import read_log
from fedcascade.data.logs.items import read_items
from fedcascade.data.logs.published import read_obp


def test_yandex(tmp_path: Path) -> None:
    path = tmp_path / "yandex.txt"
    urls = "\t".join(str(url) for url in range(10, 20))
    path.write_text(
        f"0\t0\tQ\t7\t0\t{urls}\n0\t5\tC\t12\n0\t9\tC\t12\n0\t9\tC\t10\n1\t0\tQ\t7\t0\t{urls}\n1\t3\tC\t99\n"
    )
    log = read_log(path, form="yandex")
    read = log.read()
    assert list(log.users) == ["0", "1"]
    assert np.flatnonzero(read.clicks[0]).tolist() == [0, 2]
    assert not read.clicks[1].any()
    path.write_text("0\t0\tX\n")
    with pytest.raises(ValueError, match="line 1 must be a query"):
        read_log(path, form="yandex").read()


def test_open_bandit(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    path.write_text(
        ",timestamp,item_id,position,click,propensity_score,user_feature_0,user_feature_1\n"
        "0,2019-11-24 00:00:21.306718+00:00,79,2,0,0.0125,aa,bb\n"
        "1,2019-11-24 00:00:22.306718+00:00,14,1,1,0.0125,aa,cc\n"
    )
    read = read_log(path, form="open-bandit").read()
    assert read.clicks.tolist() == [[False], [True]]
    assert read.users.tolist() == [0, 1]
    assert read.propensity is not None
    assert read.propensity.tolist() == [0.0125, 0.0125]
    assert read.times is not None
    assert read.times[1] - read.times[0] == pytest.approx(1.0)


def test_kuairand(tmp_path: Path) -> None:
    path = tmp_path / "log_random.csv"
    path.write_text(
        "user_id,video_id,date,hourmin,time_ms,is_click\n0,5,20220422,700,1650582042000,1\n0,9,2,7,1650582043000,0\n"
    )
    log = read_log(path, form="kuairand")
    assert log.read().clicks.tolist() == [[True], [False]]
    assert list(log.items) == ["5", "9"]
    path.write_text("user_id,video_id\n0,5\n")
    with pytest.raises(ValueError, match="has no column time_ms"):
        read_log(path, form="kuairand").read()


def test_finn(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    slates = np.zeros((2, 3, 4), np.int32)
    slates[0, 0], slates[0, 1, :3], slates[1, 0, :3] = [1, 50, 51, 52], [1, 50, 53], [1, 60, 61]
    lengths = np.array([[4, 3, 0], [3, 0, 0]], np.int32)
    clicks = np.array([[2, 0, 0], [1, 0, 0]], np.int32)
    np.savez(path, userId=np.array([8, 9]), click_idx=clicks, slate_lengths=lengths, slate=slates)
    log = read_log(path, form="finn")
    read = log.read()
    assert list(log.users) == ["8", "9"]
    assert read.lengths.tolist() == [3, 2, 2]
    assert [np.flatnonzero(row).tolist() for row in read.clicks] == [[1], [], [0]]
    assert sum(len(batch) for batch in read_log(path, form="finn").batches(rows=20)) == 3


def test_playlists_of_deezer_are_a_table_of_items(tmp_path: Path) -> None:
    path = tmp_path / "playlist_features.csv"
    path.write_text("f0,f1\n3,4\n0,2\n")
    items = read_items(path, normalise=True)
    assert items.names == ("0", "1")
    assert items.features[1].tolist() == [0.0, 1.0]


def test_obp_actions() -> None:
    feedback = {"action": [3, 1], "reward": [1, 0], "pscore": [0.25, 0.5], "position": None, "context": None}
    log = read_obp(feedback)
    assert log.items.tolist() == [[3], [1]]
    assert log.clicks.tolist() == [[True], [False]]
    assert log.propensity is not None
    assert log.propensity.tolist() == [0.25, 0.5]
    with pytest.raises(ValueError, match="rewards must be 0 or 1"):
        read_obp({"action": [1], "reward": [0.5]})


def test_obp_slates() -> None:
    feedback = {"slate_id": [0, 0, 1, 1], "position": [1, 0, 0, 1], "action": [2, 5, 4, 3], "reward": [1, 0, 0, 0],
                "pscore": [0.1, 0.1, 0.2, 0.2], "pscore_cascade": [0.1, 0.5, 0.4, 0.2]}  # fmt: skip
    log = read_obp(feedback)
    assert log.items.tolist() == [[5, 2], [4, 3]]
    assert log.clicks.tolist() == [[False, True], [False, False]]
    assert log.propensities is not None
    assert np.allclose(log.propensities, [[0.5, 0.2], [0.4, 0.5]])
    assert log.list_propensity is not None
    assert log.list_propensity.tolist() == [0.1, 0.2]
