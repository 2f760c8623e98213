"""Text as people have it: packed or not, with one separator or another, and lines that end as they please."""

import csv
import gzip
from io import TextIOWrapper
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import polars as pl
from polars.exceptions import PolarsError

from fedcascade.checks import require

PACKED = (".gz", ".zst")
SEPARATORS = ",;\t|"
HOLDS_NUL = "holds a NUL byte: it is not UTF-8 text, or was cut by a crash"
HEAD = 1 << 16  # bytes that are looked at to find separator and line ends


def strip_packing(path: Path) -> str:
    """The ending of a file's name that says what is in it, without .gz or .zst.

    >>> strip_packing(Path("log.csv.gz")), strip_packing(Path("log.parquet"))
    ('.csv', '.parquet')
    """
    return Path(path.stem).suffix if path.suffix in PACKED else path.suffix


def open_bytes(path: Path) -> BinaryIO:
    """Open a file, plain or packed by gzip."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def open_text(path: Path) -> TextIO:
    """Open a file of text, plain or packed by gzip."""
    return TextIOWrapper(open_bytes(path), encoding="utf-8", newline="")


def read_head(path: Path) -> bytes:
    """The first bytes of a file, unpacked."""
    try:
        if path.suffix == ".zst":
            scanned = pl.scan_csv(path, has_header=False, separator="\x1f", quote_char=None, infer_schema=False)
            return "\n".join(scanned.head(100).collect().to_series(0).fill_null("").to_list()).encode()
        with open_bytes(path) as file:
            return file.read(HEAD)
    except (OSError, EOFError, PolarsError) as error:
        raise ValueError(f"cannot read {path}: {str(error).partition(chr(10))[0]}") from None


def find_separator(head: bytes) -> str:
    """The separator that the first line has most of; a comma where it has none.

    >>> find_separator(b"user;items;clicks")
    ';'
    """
    header = head.replace(b"\r", b"\n").partition(b"\n")[0].decode("utf-8", "replace")
    return max(SEPARATORS, key=header.count)


def read_header(path: Path) -> list[str]:
    """The names in the first line of a file of text, whatever follows it."""
    head = read_head(path)
    line = head.replace(b"\r", b"\n").partition(b"\n")[0].decode("utf-8-sig", "replace")
    return [name.strip(' "') for name in line.split(find_separator(head))]


def find_line_end(head: bytes) -> str:
    """What ends a line: old Macs wrote a carriage return alone."""
    return "\r" if b"\r" in head and b"\n" not in head else "\n"


def refuse_nul(head: bytes, path: Path) -> None:
    """Refuse what is not UTF-8 text, and name the line of the first NUL."""
    require(head[:2] not in (b"\xff\xfe", b"\xfe\xff"), f"{path} is UTF-16: convert it to UTF-8, for instance by iconv")
    if b"\0" in head:
        line = head.partition(b"\0")[0].count(b"\n") + 1
        raise ValueError(f"{path}, line {line} {HOLDS_NUL}")


def describe_long_line(path: Path, separator: str) -> str:
    """Words about the first line with more fields than the header; empty if there is none."""
    if path.suffix == ".zst":
        return ""
    with open_text(path) as file:
        reader = csv.reader(file, delimiter=separator)
        columns = len(next(reader, []))
        for row in reader:
            if len(row) > columns:
                return f", line {reader.line_num} has {len(row)} fields, but the header names {columns}"
    return ""
