# SPDX-License-Identifier: MIT OR Apache-2.0
"""Names the communication phase of this program for Kumihimo.

    import kumi

    with kumi.phase("halo exchange"):
        ...

    @kumi.phase("reduction")
    def reduce(): ...

Under ``kumi run -- python3 PROGRAM``, the kernel saves the TCP parameters of each connection per
phase. Outside ``kumi run`` this module does nothing. bindings/c/kumi.h defines the nesting of
scopes, and the effect of threads and forks. bindings/c/kumi_phase_page.h defines the page's layout.

A switch costs about a microsecond, so mark phases and not single messages.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import threading
import time
from collections.abc import Callable

__all__ = ["phase"]

_ABI = 1
_PAGE_BYTES = 4096
_PHASES_MAX = 32
_NAMES_AT = 64
_NAME_BYTES = 64
_OTHER = _PHASES_MAX - 1
# Same as in kumi_phase.c: after a longer wait, the lock's holder no longer exists.
_LOCK_TURNS_MAX = 10000

# Indices into the page: in units of 4 bytes, and of 8 bytes for the last one.
_PHASE, _NAMED, _LOCK, _SCOPE, _SWITCHES = 1, 2, 3, 6, 528
_SCOPE_HOLDER = 2


class _Page:
    """The mapped phase page. A writer holds the GIL or ``self.guard``."""

    def __init__(self, fd: int) -> None:
        self.map = mmap.mmap(fd, _PAGE_BYTES, mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
        view = memoryview(self.map)
        self.words = view.cast("I")
        self.double_words = view.cast("Q")
        # Reentrant, because a signal handler may open a scope while another scope is opened.
        self.guard = threading.RLock()
        self.indices: dict[bytes, int] = {}
        self.said_other = False
        self.own_pid = os.getpid()
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.own_pid = os.getpid()
        self.guard = threading.RLock()

    def is_phase_page(self) -> bool:
        """Returns whether this is a phase page: the program may have reused the descriptor."""
        if self.words[0] != _ABI or self.words[_NAMED] > _PHASES_MAX or any(self.words[7:16]):
            return False
        first = self.name(0)
        return first == b"point-to-point" or (first == b"" and self.words[_NAMED] == 0)

    def name(self, index: int) -> bytes:
        at = _NAMES_AT + index * _NAME_BYTES
        return self.map[at : at + _NAME_BYTES].split(b"\0", 1)[0]

    def find(self, name: bytes) -> int | None:
        for index in range(min(self.words[_NAMED], _PHASES_MAX)):
            if self.name(index) == name:
                return index
        return None

    def write_name(self, index: int, name: bytes) -> None:
        at = _NAMES_AT + index * _NAME_BYTES
        self.map[at : at + _NAME_BYTES] = name.ljust(_NAME_BYTES, b"\0")
        self.words[_NAMED] = index + 1

    def lock_names(self) -> bool:
        """Locks the names. Returns False if that is not possible.

        Python has no compare-exchange, so the lock is not safe against all races. It is used only
        for a new name in a process without the preload library.
        """
        for _ in range(_LOCK_TURNS_MAX):
            if self.words[_LOCK] == 0:
                self.words[_LOCK] = self.own_pid
                time.sleep(0)
                if self.words[_LOCK] == self.own_pid:
                    return True
            time.sleep(0)
        return False

    def insert(self, name: bytes) -> int:
        if not self.lock_names():
            return 0
        try:
            if self.words[_NAMED] == 0:
                self.write_name(0, b"point-to-point")
            index = self.find(name)
            if index is not None:
                return index
            index = self.words[_NAMED]
            if index < _OTHER:
                self.write_name(index, name)
                return index
            if index == _OTHER:
                self.write_name(_OTHER, b"other")
            if not self.said_other:
                self.said_other = True
                shown = name.decode(errors="replace")
                print(
                    f'kumi: more than {_OTHER - 1} phases: "{shown}" and all further phases '
                    'share the phase "other"',
                    file=sys.stderr,
                )
            return _OTHER
        finally:
            self.words[_LOCK] = 0

    def index(self, name: bytes) -> int:
        """Returns the index of a name, and adds the name if it is new."""
        index = self.indices.get(name)
        if index is not None:
            return index
        with self.guard:
            index = self.find(name)
            # The preload library of `kumi run` is in this process, and inserts atomically.
            if index is None and _c_phase is not None:
                at = _c_phase(name)
                index = at if self.find(name) == at or at == _OTHER else None
            if index is None:
                index = self.insert(name)
            self.indices[name] = index
            return index

    def switch(self, index: int) -> None:
        self.words[_SWITCHES] = (self.words[_SWITCHES] + 1) & 0xFFFFFFFF
        self.words[_PHASE] = index

    def enter(self, index: int) -> int:
        """Opens a scope. Returns the page's ``scope`` before it."""
        with self.guard:
            holder = self.double_words[_SCOPE_HOLDER]
            ours = holder & 0xFFFFFFFF == self.own_pid
            open_before = holder >> 32 if ours else 0
            saved = self.words[_SCOPE] if ours else 0
            self.double_words[_SCOPE_HOLDER] = (open_before + 1) << 32 | self.own_pid
            self.words[_SCOPE] = index + 1
            self.switch(index)
            return saved

    def leave(self, saved: int) -> None:
        with self.guard:
            holder = self.double_words[_SCOPE_HOLDER]
            # Another process that shares the page has opened a scope since, and keeps the phase.
            if holder & 0xFFFFFFFF != self.own_pid or holder >> 32 == 0:
                return
            left = (holder >> 32) - 1
            self.double_words[_SCOPE_HOLDER] = left << 32 | self.own_pid if left else 0
            if left == 0:
                saved = 0
            elif saved == 0:
                return  # Another thread has an open scope, which began later and stays in effect.
            self.words[_SCOPE] = saved
            self.switch(saved - 1 if saved else 0)


def _map_page() -> _Page | None:
    text = os.environ.get("KUMI_PHASE_FD", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit()):
        print(
            f'kumi: KUMI_PHASE_FD="{text[:40]}" is not the number of a file descriptor; '
            "phases are not marked",
            file=sys.stderr,
        )
        return None
    try:
        page = _Page(int(text))
    except (OSError, ValueError, OverflowError):
        return None
    return page if page.is_phase_page() else None


def _find_c_phase() -> Callable[[bytes], int] | None:
    try:
        function = ctypes.CDLL(None).kumi_phase
    except (OSError, AttributeError):
        return None
    function.argtypes = [ctypes.c_char_p]
    function.restype = ctypes.c_int32
    return function


_page = _map_page()
_c_phase = _find_c_phase() if _page is not None else None
_scopes = threading.local()


class phase(contextlib.ContextDecorator):
    """Scope in which the program is in a phase. It is a context manager and a decorator.

    Scopes nest, and the innermost one is in effect. Outside ``kumi run`` a scope does nothing.

    Args:
        name: Name of the phase, as a string of 1 to 63 bytes in UTF-8, without NUL.

    Raises:
        ValueError: The name is empty, too long or contains a NUL. This is checked outside
            ``kumi run`` too, so that the error appears on the first machine.
    """

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        if not 0 < len(encoded) < _NAME_BYTES or b"\0" in encoded:
            raise ValueError(
                f"kumi: invalid phase name of {len(encoded)} bytes: "
                f"expected 1 to {_NAME_BYTES - 1} bytes without NUL"
            )
        self._index = 0 if _page is None else _page.index(encoded)

    def __enter__(self) -> phase:
        if _page is not None:
            # One stack per thread and not a field, because a decorated function may call itself.
            if not hasattr(_scopes, "saved"):
                _scopes.saved = []
            _scopes.saved.append(_page.enter(self._index))
        return self

    def __exit__(self, *_: object) -> None:
        if _page is not None:
            _page.leave(_scopes.saved.pop())
