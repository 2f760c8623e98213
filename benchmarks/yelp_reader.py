"""How fast the reviews of Yelp's academic dataset are read, and in how much memory.

It writes a file of made-up reviews with the shape of Yelp's into a temporary folder, reads it in a process of its
own, and prints the speed and the peak memory, beside a plain loop over ``json.loads``. Run it with
``python benchmarks/yelp_reader.py [megabytes]``, 500 if not given.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from hashlib import md5
from pathlib import Path

import numpy as np

BATCH = 10_000
REVIEWS_PER_USER, REVIEWS_PER_ITEM = 3.5, 46.5  # of the academic dataset: 6.99 million reviews
TEXT = "The food was good but service a little slow, and we will come back for the éclairs. " * 70


def write_reviews(path: Path, megabytes: int) -> int:
    """Write reviews of about 760 bytes until the file is large enough; returns how many there are."""
    draw, written = np.random.default_rng(0), 0
    with path.open("wb") as file:
        while file.tell() < megabytes * 1_000_000:
            users = _draw_long_tail(draw, (written + BATCH) / REVIEWS_PER_USER)
            items = _draw_long_tail(draw, (written + BATCH) / REVIEWS_PER_ITEM)
            stars = draw.choice([1.0, 2.0, 3.0, 4.0, 5.0], BATCH, p=[0.15, 0.08, 0.1, 0.21, 0.46])
            lengths = np.clip(draw.lognormal(6.0, 0.8, BATCH), 20, 5_000).astype(int)
            for user, item, star, length in zip(users, items, stars, lengths, strict=True):
                file.write(_format_review(written, user, item, star, length))
                written += 1
    return written


def _draw_long_tail(draw: np.random.Generator, size: float) -> np.ndarray:
    return (draw.random(BATCH) ** 2 * size).astype(np.int64)


def _make_name(text: str) -> str:
    """Return a name of 22 letters, as in Yelp's files."""
    return urlsafe_b64encode(md5(text.encode()).digest())[:22].decode()


def _format_review(number: int, user: int, item: int, star: float, length: int) -> bytes:
    text, who, what = TEXT[number % 80 : number % 80 + length], _make_name(f"user {user}"), _make_name(f"item {item}")
    return (
        f'{{"review_id":"{number:022d}","user_id":"{who}","business_id":"{what}","stars":{star},"useful":0,'
        f'"funny":0,"cool":0,"text":"{text}","date":"2018-07-07 22:09:11"}}\n'
    ).encode()


def read(path: Path) -> dict[str, float]:
    """Read the file with fedcascade."""
    from fedcascade.data.readers import read_ratings

    before, start = _measure_peak(), _read_clocks()
    ratings = read_ratings(path)
    return _make_facts(start, before, ratings.values.size, int(ratings.users.max()) + 1, int(ratings.items.max()) + 1)


def read_plainly(path: Path) -> dict[str, float]:
    """Read the file as a script would: every review becomes a dict."""
    before, start = _measure_peak(), _read_clocks()
    with path.open(encoding="utf-8") as file:
        rows = [(row["user_id"], row["business_id"], row["stars"]) for row in map(json.loads, file)]
    return _make_facts(start, before, len(rows), len({row[0] for row in rows}), len({row[1] for row in rows}))


def _read_clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _make_facts(start: tuple[float, float], before: float, ratings: int, users: int, items: int) -> dict[str, float]:
    (seconds, busy), after = (now - then for now, then in zip(_read_clocks(), start, strict=True)), _measure_peak()
    sizes = {"ratings": ratings, "users": users, "items": items}
    return {"seconds": seconds, "busy": busy, **sizes, "before_mb": before, "peak_mb": after}


def _measure_peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000


def main() -> None:
    """Write, read in processes of their own, and compare."""
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "yelp_academic_dataset_review.json"
        reviews = write_reviews(path, megabytes)
        size = path.stat().st_size / 1e6
        print(f"{size:,.0f} MB, {reviews:,} reviews")
        speeds = []
        for how in ("read", "read_plainly"):
            done = subprocess.run(
                [sys.executable, __file__, how, str(path)], check=True, capture_output=True, text=True, env=os.environ
            )
            facts = json.loads(done.stdout)
            speeds.append(size / facts["busy"])
            print(
                f"{how:13} {size / facts['seconds']:,.0f} MB/s, {speeds[-1]:,.0f} MB per second of processor time, "
                f"{facts['ratings']:,} ratings by {facts['users']:,} users of "
                f"{facts['items']:,} items, peak memory {facts['peak_mb']:,.0f} MB, "
                f"of which {facts['before_mb']:,.0f} MB before the first byte"
            )
        print(f"ratio: {speeds[0] / speeds[1]:.1f} times as fast as a loop over json.loads, by processor time")


if __name__ == "__main__":
    if sys.argv[1:2] in (["read"], ["read_plainly"]):
        print(json.dumps(globals()[sys.argv[1]](Path(sys.argv[2]))))
    else:
        main()
