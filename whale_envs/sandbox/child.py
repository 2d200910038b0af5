"""A confined child of a zygote, from the caller's side: the socket to it, its start and its end."""

from __future__ import annotations

import contextlib
import socket
import weakref

from whale_envs.sandbox.launch import SandboxError, Zygote, ZygoteEnded, receive_with_sender


class Child:
    """A child that was asked of `zygote`; killed by `close`, which may be called again, or when nobody has it any more.

    Args:
        zygote: where it is forked. Raises `ZygoteEnded` when that is gone.
        memory_mb: MiB that it may allocate.
        cpu_seconds: processor time over its life.
        standard: descriptors of its standard output and error, if it has those; they stay the caller's.
        request: what else its payload is told.
    """

    def __init__(self, zygote: Zygote, memory_mb: int, cpu_seconds: int, *standard: int, **request: int) -> None:
        self.socket, theirs = socket.socketpair()
        self._zygote, self._token = zygote, zygote.token()
        self.pid = 0  # which it says itself, in `wait_until_ready`
        self.resources = contextlib.ExitStack()
        self.resources.callback(zygote.forget, self._token)
        self.resources.enter_context(self.socket)
        self.close = weakref.finalize(self, self.resources.close)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        limits = {"memory_mb": memory_mb, "cpu_seconds": cpu_seconds}
        try:
            with theirs:
                zygote.ask("fork", self._token, theirs.fileno(), *standard, **limits, **request)
        except BaseException:
            self.close()
            raise

    def wait_until_ready(self, seconds: float) -> None:
        """Wait until it has confined itself.

        Raises `ZygoteEnded` when it has ended before, `TimeoutError` when that takes longer than `seconds`, and
        `SandboxError` when it could not be forked or could not confine itself.
        """
        self.socket.settimeout(seconds)
        try:
            said, pid = receive_with_sender(self.socket, 1)
            if said == b"F":
                raise SandboxError(self.socket.recv(4096).decode())
        except ConnectionResetError:
            said = b""
        if not said:
            raise ZygoteEnded
        self.pid = pid
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)  # or each frame would carry it

    def post_mortem(self) -> tuple[int, float]:
        """Its wait status and the processor seconds that it used; it is killed if it has not ended.

        Raises `ZygoteEnded` when the zygote is gone, or does not know.
        """
        return self._zygote.post_mortem(self._token)
