"""The child process that runs a harness which is not trusted. Started by `whale_envs.harness.jail`, by path.

Usage: python jail_worker.py FD PARENT_PID MEMORY_MB CPU_SECONDS [FOLDER...]

FOLDERs are where third-party modules are found (the interpreter is started without `site`, for speed). The worker
loads the few files of the package that a harness needs, confines itself, and only then reads the harness's source.
Everything that it sends is treated as hostile by the other side.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from types import ModuleType
from typing import Any

PACKAGE = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))


def load(name: str) -> ModuleType:
    """Load one module of whale_envs without running the package's `__init__`, which imports Gymnasium."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = sys.modules.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        parent.__path__ = [os.path.join(PACKAGE, *parts[1:at])]
    return importlib.import_module(name)


def serve(sock: socket.socket, wire: Any, namespace: Any, helpers: Any, tool_use_error: type[Exception]) -> None:
    """Answer the parent's frames until it closes its end."""

    def call_tool(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        try:
            wire.send(sock, {"tool": [name, args, kwargs]})
            frame, _ = wire.receive(sock)
        except BaseException:  # cut off in the middle, by a full stack or memory: the frames would not match any more
            os._exit(1)
        if "error" in frame:
            raise tool_use_error(frame["error"])
        return wire.unpack(frame["result"])

    source, _ = wire.receive(sock)
    code = compile(source["source"], source["name"], "exec", dont_inherit=True)
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


def main() -> None:
    """Load, confine, serve."""
    fd, parent, memory_mb, cpu_seconds = map(int, sys.argv[1:5])
    sys.path += sys.argv[5:]
    sock = socket.socket(fileno=fd)
    try:
        errors = load("whale_envs.errors")
        helpers = load("whale_envs.harness.helpers")
        wire = load("whale_envs.harness.wire")
        namespace = load("whale_envs.harness.namespace")
        for name in namespace.ALLOWED_IMPORTS:  # no file can be opened later
            importlib.import_module(name)
        layers = load("whale_envs.sandbox.layers")
        confinement = layers.Confinement()
        sys.path.clear()
        confinement.apply((0, 1, 2, fd), memory_mb, cpu_seconds, parent=parent)
    except Exception as error:  # all of it is the parent's to report: there is no one else to tell
        data = json.dumps({"unfit": f"{type(error).__name__}: {error}"}).encode()
        sock.sendall(len(data).to_bytes(4, "big") + data)
        return
    wire.send(sock, {"ready": True})
    try:
        serve(sock, wire, namespace, helpers, errors.ToolUseError)
    except wire.WireError:
        return  # the parent is gone or has closed its end


if __name__ == "__main__":
    main()
