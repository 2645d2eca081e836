"""The one place that writes what outlives the process: single files and directories, each whole or not at all.

What is written grows beside its target, under a name that says whose it is (`.NAME-partial`), held by a lock that ends with
the process, and gets the target's name in one rename. So a reader, a kill or a full disk finds the old content or the new,
two writers cannot mix, and what a killed writer left is cleared by the next one of the same target.

    .DIR-partial/lock    held while DIR is being written
    .DIR-partial/new     what will be DIR; after an exchange, what DIR was
    .DIR-partial/old     what DIR was, where the file system cannot exchange two names in one step
    .FILE-partial        what will be FILE; it is its own lock
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import fnmatch
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

_LOCK, _NEW, _OLD = "lock", "new", "old"
_RENAME_EXCHANGE, _AT_FDCWD = 2, -100  # linux/fs.h, linux/fcntl.h
_UNKNOWN_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.ENOLCK)  # not every file system locks and exchanges


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a directory of the project holds; nothing else that lies in one is ever removed.

    `names` are patterns of paths inside it ("steps/*.plan", where * stays within one name); a directory without the files
    `required` is none of this kind.
    """

    noun: str  # "run directory"
    required: tuple[str, ...]
    names: tuple[str, ...]


def write_text(path: pathlib.Path, text: str) -> None:
    """Puts a file with `text` as UTF-8 in the place of `path`; a symlink there is replaced, not followed."""
    with replacing(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def replacing(path: pathlib.Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path` when the block ends; when it raises, `path` stays as it was.

    Raises FileExistsError when `path` is no file (a device, a directory), or when another process is writing it.
    """
    if path.exists() and not path.is_file():
        raise FileExistsError(f"'{path}' exists and is no file; expected a file, or a new name")
    partial = _partial(path)
    descriptor = _locked(partial, path)
    try:
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.truncate(0)
                yield file
                file.flush()
                os.fsync(descriptor)
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def publishing(target: pathlib.Path, kind: Kind, *, force: bool = False) -> Iterator[pathlib.Path]:
    """An empty directory that becomes `target` when the block ends; when it raises, `target` stays as it was.

    `target` is claimed before the block begins. Raises FileExistsError when another process is writing it, and for what
    `check` refuses. With `force` the new directory and an old one change names in one step; where the file system cannot,
    a kill in between leaves the old one where the next claim puts it back.
    """
    if os.path.lexists(target) and not os.path.lexists(_partial(target)):
        check(target, kind, force=force)  # before anything is made beside it
    made = _make_parents(target)
    try:
        with _claimed(target, kind) as workspace:
            check(target, kind, force=force)
            new = workspace / _NEW
            new.mkdir()
            try:
                yield new
            except BaseException:
                _remove(new)
                raise
            assert not foreign(new, kind), f"{kind} does not know its own files"
            _publish(new, target, kind, force=force)
    except BaseException:
        for parent in made:
            with contextlib.suppress(OSError):  # not empty: somebody else uses it by now
                parent.rmdir()
        raise


@contextlib.contextmanager
def amending(target: pathlib.Path, kind: Kind) -> Iterator[pathlib.Path]:
    """A copy of the directory `target`, empty where there is none, that takes its place when the block ends."""
    with publishing(target, kind, force=True) as new:
        if target.is_dir():
            import shutil

            shutil.copytree(target, new, dirs_exist_ok=True)
        yield new


def check(target: pathlib.Path, kind: Kind, *, force: bool) -> None:
    """Raises FileExistsError when a directory of `kind` may not be written to `target`.

    It may where nothing is, and with `force` in the place of an empty directory or of one of that kind.
    """
    if not os.path.lexists(target):
        return
    if not force:
        raise FileExistsError(f"output directory '{target}' exists; expected a new one, or --force to replace it")
    if target.is_symlink() or not target.is_dir():
        raise FileExistsError(f"'{target}' exists and is no {kind.noun}; it is left as it is")
    if not any(target.iterdir()):
        return
    if missing := [name for name in kind.required if not (target / name).is_file()]:
        raise FileExistsError(f"'{target}' exists and is no {kind.noun} (no {_listed(missing)}); it is left as it is")
    _refuse_foreign(target, kind)


def foreign(directory: pathlib.Path, kind: Kind) -> list[str]:
    """Paths inside `directory` that one of `kind` does not have: other names, and whatever is no file."""
    found = []

    def fail(error: OSError) -> None:
        raise error  # what cannot be looked at may hold anything

    for folder, names, files in os.walk(directory, onerror=fail):
        for name in (*files, *(name for name in names if os.path.islink(os.path.join(folder, name)))):
            path = pathlib.Path(folder, name)
            is_file = path.is_file() and not path.is_symlink()
            if not (is_file and _is_known(path.with_name(_final(name)).relative_to(directory), kind)):
                found.append(str(path.relative_to(directory)))
    return sorted(found)


def restore(target: pathlib.Path, kind: Kind) -> None:
    """Puts back at `target` what a killed replacement had taken from there; nothing where there was none."""
    if not os.path.lexists(target) and (_partial(target) / _OLD).is_dir():
        with _claimed(target, kind):
            pass


def _is_known(inside: pathlib.PurePath, kind: Kind) -> bool:
    return any(
        len(parts := pathlib.PurePath(pattern).parts) == len(inside.parts) and all(map(fnmatch.fnmatchcase, inside.parts, parts))
        for pattern in kind.names
    )  # fmt: skip


def _refuse_foreign(directory: pathlib.Path, kind: Kind) -> None:
    if others := foreign(directory, kind):
        raise FileExistsError(
            f"'{directory}' holds what no {kind.noun} does: {_listed(others)}; nothing is removed, move that away first"
        )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:5])
    return shown + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def _partial(path: pathlib.Path) -> pathlib.Path:
    if path.name in ("", ".."):  # "." and "x/.." have no name of their own
        path = pathlib.Path(os.path.abspath(path))
    return path.parent / f".{path.name}-partial"


def _final(name: str) -> str:
    """Of a file that a killed writer left beside its target: the target's name."""
    return name[1 : -len("-partial")] if name.startswith(".") and name[2:].endswith("-partial") else name


def _make_parents(target: pathlib.Path) -> list[pathlib.Path]:
    """Makes the directories above `target` that are not there; returns them, innermost first."""
    above = pathlib.Path(os.path.abspath(target)).parents
    there = next(parent for parent in above if os.path.lexists(parent))
    if not there.is_dir():
        raise FileExistsError(f"'{target}' cannot be made: '{there}' is no directory")
    missing = [parent for parent in above if there in parent.parents]
    for parent in reversed(missing):
        parent.mkdir(exist_ok=True)
    return missing


@contextlib.contextmanager
def _claimed(target: pathlib.Path, kind: Kind) -> Iterator[pathlib.Path]:
    """The directory beside `target` in which this process alone writes, cleared of what a killed one left."""
    workspace = _partial(target)
    descriptor = -1
    try:
        while descriptor < 0:
            with contextlib.suppress(FileExistsError):
                workspace.mkdir(mode=0o700)
            with contextlib.suppress(FileNotFoundError):  # one that ended just now took it away: again
                descriptor = _locked(workspace / _LOCK, target)
        _clear(workspace, target, kind)
        try:
            yield workspace
        finally:
            _clear(workspace, target, kind)
    finally:
        if descriptor >= 0:
            (workspace / _LOCK).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # not empty: somebody else's, or the next one is there already
            workspace.rmdir()
        if descriptor >= 0:
            os.close(descriptor)


def _clear(workspace: pathlib.Path, target: pathlib.Path, kind: Kind) -> None:
    if (workspace / _OLD).is_dir() and not os.path.lexists(target):
        os.rename(workspace / _OLD, target)
    for left in (workspace / _NEW, workspace / _OLD):
        if left.is_dir():
            _refuse_foreign(left, kind)
            _remove(left)


def _remove(directory: pathlib.Path) -> None:
    import shutil  # here, so that importing the command line does not pay for it

    shutil.rmtree(directory)


def _publish(new: pathlib.Path, target: pathlib.Path, kind: Kind, *, force: bool) -> None:
    """Gives `new` the name of `target`; what that named before is then in the workspace, and of `kind`."""
    try:
        os.rename(new, target)  # onto nothing or an empty directory; the system refuses every other
        return
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    check(target, kind, force=force)
    old = new if _exchange(new, target) else new.with_name(_OLD)
    if old != new:
        os.rename(target, old)
        os.rename(new, target)
    if others := foreign(old, kind):  # put there since the check
        if not _exchange(old, target):
            os.rename(target, new)
            os.rename(old, target)
        raise FileExistsError(f"'{target}' was given {_listed(others)} meanwhile, which no {kind.noun} has; it is left as it is")


def _exchange(a: pathlib.Path, b: pathlib.Path) -> bool:
    """Lets two directories change names in one step; false where system or file system cannot."""
    import ctypes  # here, so that importing the command line does not pay for it

    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), _RENAME_EXCHANGE) == 0:
        return True
    if (code := ctypes.get_errno()) in _UNKNOWN_HERE:
        return False
    raise OSError(code, os.strerror(code), str(a), None, str(b))


def _locked(path: pathlib.Path, target: pathlib.Path) -> int:
    """Descriptor of the file `path`, made where it is not, with a lock that ends with the descriptor.

    Raises FileExistsError when another process holds it, and where nothing can be locked when the file is there already.
    """
    while True:
        descriptor, is_new = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise FileExistsError(f"another process is writing '{target}'") from None
        except OSError as error:
            if is_new and error.errno in _UNKNOWN_HERE:
                return descriptor  # nobody else made it
            os.close(descriptor)
            if is_new:
                path.unlink()
                raise
            raise FileExistsError(
                f"'{path}' exists, and nothing tells whether its writer still runs ({error.strerror}); remove it if none does"
            ) from None
        except BaseException:
            if is_new:
                path.unlink()
            os.close(descriptor)
            raise
        os.close(descriptor)  # the writer before has renamed or removed it since it was opened


def _opened(path: pathlib.Path) -> tuple[int, bool]:
    """Descriptor of the file, and whether it is new."""
    while True:
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), True
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC), False


def _is_at(descriptor: int, path: pathlib.Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


__all__ = ["Kind", "amending", "check", "foreign", "publishing", "replacing", "restore", "write_text"]
