"""The child process that runs a harness which is not trusted. Started by `whale_envs.harness.jail`, by path.

Usage: python jail_worker.py FD MEMORY_BYTES CPU_SECONDS

It loads the few files of the package that a harness needs, confines itself, and only then reads the harness's
source. Everything that it sends is treated as hostile by the other side.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import socket
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent


def load(name: str) -> ModuleType:
    """Load one module of whale_envs without running the package's `__init__`, which imports Gymnasium."""
    parts = name.split(".")
    for at in range(1, len(parts)):
        parent = sys.modules.setdefault(".".join(parts[:at]), ModuleType(".".join(parts[:at])))
        parent.__path__ = [str(PACKAGE.joinpath(*parts[1:at]))]
    return importlib.import_module(name)


def serve(sock: socket.socket, wire: Any, namespace: Any, helpers: Any, tool_use_error: type[Exception]) -> None:
    """Answer the parent's frames until it closes its end."""

    def call_tool(name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        wire.send(sock, {"tool": [name, args, kwargs]})
        frame, _ = wire.receive(sock)
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


def confine(memory: int, cpu_seconds: int) -> str:
    """Give up every right that a harness does not need; returns the sandbox's tier."""
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    for what in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_NOFILE):
        resource.setrlimit(what, (0, 0))
    return "rlimits"


def main() -> None:
    """Load, confine, serve."""
    fd, memory, cpu_seconds = map(int, sys.argv[1:])
    sock = socket.socket(fileno=fd)
    sys.dont_write_bytecode = True
    try:
        errors, helpers, wire, namespace = map(
            load,
            (
                "whale_envs.errors",
                "whale_envs.harness.helpers",
                "whale_envs.harness.wire",
                "whale_envs.harness.namespace",
            ),
        )
        for name in namespace.ALLOWED_IMPORTS:  # no file can be opened later
            importlib.import_module(name)
        tier = confine(memory, cpu_seconds)
    except Exception as error:
        data = json.dumps({"unfit": f"{type(error).__name__}: {error}"}).encode()
        sock.sendall(len(data).to_bytes(4, "big") + data)
        return
    wire.send(sock, {"ready": tier})
    try:
        serve(sock, wire, namespace, helpers, errors.ToolUseError)
    except wire.WireError:
        return  # the parent is gone or has closed its end


if __name__ == "__main__":
    main()
