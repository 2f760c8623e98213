"""The file that holds the operator's token, readable by its owner alone."""

import os
from pathlib import Path

from fedcascade.checks import require
from fedcascade.systems import sync_file

LEAST_CHARACTERS = 16  # a shorter token could be guessed


def read_token(path: Path) -> str:
    """Read the operator's token from its file; refuse one that is missing, short or no line of text."""
    try:
        token = path.read_text(encoding="ascii").strip()
    except OSError as error:
        raise ValueError(f"cannot read the operator's token from '{path}': {error.strerror}") from None
    except UnicodeDecodeError:
        token = ""
    is_good = len(token) >= LEAST_CHARACTERS and token.isprintable()
    words = f"one line of at least {LEAST_CHARACTERS} letters and digits"
    require(is_good, f"'{path}' holds no operator's token, which is {words}: put one there, or delete the file")
    return token


def write_token(path: Path, token: str) -> None:
    """Write a token to a new file, which others cannot read, and force it to the disk."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{token}\n")
            file.flush()
            sync_file(file.fileno())
    except OSError as error:
        raise ValueError(f"cannot write the operator's token to '{path}': {error.strerror}") from None


def require_room(path: Path) -> None:
    """Refuse a place where neither is a token nor could be one."""
    is_writable = path.parent.is_dir() and os.access(path.parent, os.W_OK)
    words = "must be a folder in which a file can be made"
    require(path.exists() or is_writable, f"cannot write the operator's token to '{path}': '{path.parent}' {words}")
