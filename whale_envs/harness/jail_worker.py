"""The child process that runs a harness which is not trusted. Started by `whale_envs.harness.jail`, by path.

Usage: python jail_worker.py FD [FOLDER...]

FD is a socket to the parent; FOLDERs are where third-party modules are found (the interpreter is started without
`site`, for speed). The worker loads the few files of the package that a harness needs, confines itself, and only then
compiles the harness. Everything that it sends is treated as hostile by the other side.
"""

from __future__ import annotations

import importlib
import os
import socket
import sys
from types import ModuleType
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


MODULES = (
    "whale_envs.errors",
    "whale_envs.harness.helpers",
    "whale_envs.harness.wire",
    "whale_envs.harness.namespace",
)


def load(name: str) -> ModuleType:
    """Load one module of whale_envs without running the package's `__init__`, which imports Gymnasium."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = sys.modules.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        parent.__path__ = [os.path.join(PACKAGE, *parts[1:at])]
    return importlib.import_module(name)


def serve(sock: socket.socket, source: str, name: str) -> None:
    """Answer the parent's frames until it closes its end."""
    errors, helpers, wire, namespace = map(load, MODULES)

    def call_tool(tool: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            wire.send(sock, {"tool": [tool, args, kwargs]})
            frame, _ = wire.receive(sock)
        except BaseException:  # cut off in the middle, by a full stack or memory: the frames would not match any more
            os._exit(1)
        if "error" in frame:
            raise errors.ToolUseError(frame["error"])
        return wire.unpack(frame["result"])

    code = compile(source, name, "exec", dont_inherit=True)
    runs: dict[int, Any] = {}
    while True:
        frame, _ = wire.receive(sock)
        if "close" in frame:
            run = runs.pop(frame["close"], None)
            if run is not None:
                run.close()
            wire.send(sock, {"closed": frame["close"]})
            continue
        if "start" in frame:
            view = helpers.TaskView(wire.unpack(frame["start"]["shown"]))
            runs[frame["id"]] = namespace.Run(code, view, call_tool, frame["start"]["seed"], lambda text: None)
        reply = frame["reply"]
        view = reply and helpers.ReplyView(reply["text"], reply["finish_reason"], tuple(reply["tool_calls"]))
        kind, value = runs[frame["id"]].resume(view)
        if kind == "ask":
            value = [value.messages, value.tools, value.max_tokens, value.stop, value.template_kwargs]
        else:
            del runs[frame["id"]]
        wire.send(sock, {kind: value})


def confine(keep: set[int], setup: dict[str, Any]) -> None:
    """Give up every right that a harness does not need, having imported all that it may."""
    for name in (*MODULES, *setup["imports"]):
        load(name) if name in MODULES else importlib.import_module(name)
    layers: Any = load("whale_envs.sandbox.layers")
    sys.path.clear()
    if setup["seccomp"]:
        confinement = layers.Confinement(bytes.fromhex(setup["seccomp"]))
        confinement.apply(keep, setup["memory_mb"], setup["cpu_seconds"], parent=setup["parent"])
    else:  # the user said --unsafe
        layers.limit(keep, layers.mapped_bytes() + (setup["memory_mb"] << 20), setup["cpu_seconds"])


def main() -> None:
    """Load, confine, serve."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    sys.path += sys.argv[2:]
    wire: Any = load("whale_envs.harness.wire")
    setup, _ = wire.receive(sock)
    try:
        confine({0, 1, 2, sock.fileno()}, setup)
    except Exception as error:  # all of it is for the parent to tell: there is nobody else here
        wire.send(sock, {"unfit": f"{type(error).__name__}: {error}"})
        return
    wire.send(sock, {"ready": True})
    try:
        serve(sock, setup["source"], setup["name"])
    except wire.WireError:
        return  # the parent is gone or has closed its end


if __name__ == "__main__":
    main()
