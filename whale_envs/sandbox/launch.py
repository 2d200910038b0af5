"""Starting zygotes, asking them, and ending them, from the caller's side."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import select
import signal
import socket
import struct
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from whale_envs.errors import UserError
from whale_envs.sandbox import isolation, layers

#: Seconds for a zygote to answer, and past a deadline to report an end; one that is stopped or hangs does neither.
HUNG_SECONDS = 20.0
START_SECONDS = 300.0  # importing sympy takes three, and forty on a machine that is busy with other things
LEAVE_SECONDS = 5.0
_ZYGOTE = Path(__file__).with_name("zygote.py")
_CREDENTIALS = struct.Struct("3i")  # of a sender, as the kernel tells them: process, user and group id


class SandboxError(RuntimeError):
    """The sandbox itself does not work; never the fault of the code that was to run."""


class ZygoteEnded(Exception):
    """The zygote is gone, or hangs."""


class Zygote:
    """A zygote (see `zygote.py`) that has been told to start: its control socket and process id.

    `close` ends it with all its children, may be called again, and is called when nobody has this object any more.
    """

    _tokens = itertools.count(1)

    def __init__(self, control: socket.socket, end: Callable[..., object], *held: object) -> None:
        self._control, self._owner = control, os.getpid()
        self._living: set[int] = set()
        self.pid = 0
        self.close = weakref.finalize(self, _close, control, self._owner, end, *held)

    def wait_until_ready(self, seconds: float) -> str:
        """Wait for its first word, and return that: "ready", what is wrong, or nothing if it ended or took too long."""
        self._control.settimeout(seconds)
        try:
            said, pid = receive_with_sender(self._control, 4096)
        except (TimeoutError, ConnectionResetError):
            return ""
        self._control.settimeout(None)
        # by the kernel: to ask before whether one may send is a call more, and says no when the queue is a quarter full
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(HUNG_SECONDS), 0))
        self.pid = self.pid or pid
        return said.decode()

    @property
    def ended(self) -> bool:
        """Whether it is gone, or not ours: this process is a forked copy."""
        return self._owner != os.getpid() or readable(self._control.fileno(), 0)  # it says nothing more but its end

    def token(self) -> int:
        """A name for a child."""
        return next(self._tokens)

    def ask(self, do: str, token: int, *fds: int, **request: int) -> None:
        """Send a request. `ZygoteEnded` if it is gone, does not read, or is not ours: this process is a forked copy."""
        if self._owner != os.getpid():
            raise ZygoteEnded("another process's")
        message = msgspec.json.encode({"do": do, "token": token, **request})
        try:
            if fds:
                socket.send_fds(self._control, [message], fds)
            else:
                self._control.send(message)
        except OSError as error:
            raise ZygoteEnded(str(error)) from None
        (self._living.discard if do == "end" else self._living.add)(token)

    def forget(self, token: int) -> None:
        """Kill and reap a child, unless that has been done."""
        if token in self._living:
            with contextlib.suppress(ZygoteEnded):  # whose children end with it, or when their sockets do
                self.ask("end", token)

    def post_mortem(self, token: int) -> tuple[int, float]:
        """A child's wait status, and the processor seconds that it used; it is killed if it has not ended.

        Raises `ZygoteEnded` also when the zygote does not know.
        """
        ours, theirs = os.pipe()
        with open(ours, "rb") as file:
            try:
                self.ask("end", token, theirs)
            finally:
                os.close(theirs)
            if not readable(ours, HUNG_SECONDS) or not (said := file.read()):
                raise ZygoteEnded
        status, cpu = said.split()
        return int(status), float(cpu)

    def nest(self, options: Mapping[str, object], seconds: float) -> Zygote:
        """A zygote forked from this one, with a payload of its own: what this one has imported is there at once.

        Raises `ZygoteEnded` if this one or that one ends before it is ready, `SandboxError` if it cannot be forked.
        """
        ours, theirs = _control_sockets()
        nested = Zygote(ours, self.forget, token := self.token())
        try:
            with theirs, open(os.memfd_create("options"), "w+", encoding="utf-8") as file:
                json.dump(options, file)
                file.seek(0)
                self.ask("nest", token, theirs.fileno(), file.fileno())
            said = nested.wait_until_ready(seconds)
            if said.startswith("F"):
                raise SandboxError(said[1:])
            if not said:
                raise ZygoteEnded("it did not start")
        except BaseException:
            nested.close()
            raise
        return nested


def start(payload: str, options: Mapping[str, Any], threads: bool, environment: Mapping[str, str]) -> Zygote:
    """A new zygote.

    Args:
        payload: the module with the class `Payload` that says what children do.
        options: its arguments, as JSON.
        threads: whether children may start threads.
        environment: variables besides those of `isolation.ENVIRONMENT`.

    Raises `UserError` where this machine offers no isolation, or one that does not hold; `SandboxError` when it does
    not start.
    """
    found = isolation.require()
    seccomp = layers.compile_filter(threads=False) if found.seccomp and not threads else found.seccomp
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as given:
        control, theirs = _control_sockets()
        ours.enter_context(control)
        passed = [given.enter_context(theirs).fileno(), os.pidfd_open(os.getpid())]
        given.callback(os.close, passed[1])
        if seccomp and (rules := layers.no_rights()) >= 0:
            given.callback(os.close, rules)
            passed.append(rules)
        high = []  # out of the way of the numbers that the zygote expects them at
        for fd in passed:
            high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10))
            given.callback(os.close, high[-1])
        layers_used = {"own_user": found.own_user, "seccomp": seccomp.hex(), "landlock": len(passed) == 3}
        config = {"payload": payload, "options": options, "threads": threads, **layers_used}
        command = isolation.command(_ZYGOTE, json.dumps(config))
        pid = os.posix_spawn(
            command[0],
            command,
            isolation.ENVIRONMENT | dict(environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                *(() if _has_stderr() else ((os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),)),
                *((os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high, 3)),
            ],
            setsid=True,  # Ctrl-C is for the caller
            setsigdef=[signal.SIGCHLD],  # a caller that ignores it would leave its zygotes nothing to wait for
        )
        ours.pop_all()
    zygote = Zygote(control, _reap, pid)
    zygote.pid = pid
    said = zygote.wait_until_ready(START_SECONDS)
    if said == "ready":
        return zygote
    zygote.close()
    if said:
        raise UserError(
            f"the sandbox does not hold on this machine ({isolation.tier()}): {said}; "
            "nothing untrusted is run; use a current Linux kernel (5.13 or later) with seccomp"
        )
    raise SandboxError(f"the sandbox process did not start ({isolation.tier()}); its message is above")


def receive_with_sender(sock: socket.socket, size: int) -> tuple[bytes, int]:
    """What comes next on a socket with SO_PASSCRED, and the process id of who sent it, in this process's namespace."""
    said, extra, _, _ = sock.recvmsg(size, socket.CMSG_SPACE(_CREDENTIALS.size))
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            return said, int(_CREDENTIALS.unpack(data)[0])
    return said, 0


def readable(fd: int, seconds: float) -> bool:
    """Wait until there is something to read, or an end; False when that takes too long."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


def _has_stderr() -> bool:
    """Whether there is standard error to pass on. Where a daemon has closed it, its number may be anything's."""
    try:
        return os.get_inheritable(2)
    except OSError:
        return False


def _control_sockets() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    return ours, theirs


def _close(control: socket.socket, owner: int, end: Callable[..., object], *held: object) -> None:
    """Close the control socket, on which a zygote leaves with all its children, and reap it."""
    if owner == os.getpid():  # a forked copy of the caller leaves it alone
        with contextlib.suppress(OSError):  # it has ended
            control.shutdown(socket.SHUT_RDWR)  # a copy may still have the socket
        control.close()
        end(*held)
    control.close()


def _reap(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, ChildProcessError):  # reaped by somebody else's wait
        pidfd = os.pidfd_open(pid)
        try:
            if not readable(pidfd, LEAVE_SECONDS):
                os.killpg(pid, signal.SIGKILL)  # what is inside bubblewrap too; not reaped, so the number is its
            os.waitpid(pid, 0)
        finally:
            os.close(pidfd)
