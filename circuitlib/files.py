"""Files, whole or not at all: what is written takes the old file's place in the end, and only ordinary files are read."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A file to write to, which takes the place of ``path`` in the end, or goes if something goes wrong.

    A link is replaced, and what it leads to is left alone. A pipe or a device is written to as it is.
    """
    path = Path(path)
    if path.exists() and (not path.is_file() or path.absolute().parent == Path("/dev")):
        yield path
        return
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "its folder does not exist", str(path))
    temporary = path.with_name(f"{path.stem}.{os.getpid()}.tmp{path.suffix}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Replace a text file, in UTF-8 and with the same line ends on every system."""
    with whole(path) as temporary:
        temporary.write_text(text, "utf8", newline="\n")


def read_bytes(path: Path, most: int) -> bytes:
    """What an ordinary file of at most ``most`` bytes holds; a ValueError, in one line, if it can't be had."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe or a device may never end
            raise ValueError(f"{path}: expected a file")
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ValueError(f"{path}: can't be read ({error.strerror or type(error).__name__})") from None
    if len(content) > most:
        raise ValueError(f"{path}: more than {most:,} bytes, expected at most that")
    return content


def read_text(path: Path, most: int) -> str:
    """``read_bytes`` as UTF-8 text."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: not UTF-8 text") from None
