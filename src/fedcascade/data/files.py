"""Files that appear whole or not at all."""

import os
from pathlib import Path

from fedcascade.systems import sync_file, sync_folder


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file so that it appears whole or not at all, also after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        with draft.open("wb") as stream:
            stream.write(content)
            stream.flush()
            sync_file(stream.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)  # the name, too
