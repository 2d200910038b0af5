"""A headless chromium, spoken to over its DevTools pipe: opens one file and says what became of it.

Nothing outside is to be reached from it: every host name is unknown to it, and all requests are on record.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

#: Where chromium is, None where it is not installed.
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
#: Seconds that it may take to answer: a loaded machine is slow.
PATIENCE = 120
FLAGS = (
    "--headless",
    "--no-sandbox",  # it refuses to start as root otherwise, and the page is our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--window-size=1280,900",
    "--remote-debugging-pipe",
    "about:blank",
)


class Browser:
    """A page open in chromium.

    Attributes:
        requests: the URL of everything that the page has asked for, itself first.
        complaints: what its console has heard, script errors among it.
    """

    def __init__(self, page: Path, profile: Path) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._number, self._heard, self._loaded = 0, b"", False
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # chromium reads at 3 and writes at 4, wherever our ends are
        wired = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
        command = ["bash", "-c", wired, "bash", str(CHROMIUM), f"--user-data-dir={profile}", *FLAGS]
        self._process = subprocess.Popen(command, pass_fds=(theirs_in, theirs_out), stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self._session: str | None = None
        (target,) = (t for t in self._ask("Target.getTargets")["targetInfos"] if t["type"] == "page")
        attached = self._ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for part in ("Page", "Network", "Runtime", "Log"):
            self._ask(f"{part}.enable")
        self._ask("Page.navigate", url=page.resolve().as_uri())
        while not self._loaded:
            self._take(self._next())

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)  # it ends when nobody speaks to it any more
        os.close(self._in)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression in the page, as JSON can say it."""
        said = self._ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in said, said
        return said["result"].get("value")

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        asked = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            asked["sessionId"] = self._session
        os.write(self._out, json.dumps(asked).encode() + b"\0")
        while True:
            said = self._next()
            if said.get("id") == self._number:
                assert "error" not in said, said
                return dict(said["result"])
            self._take(said)

    def _next(self) -> dict[str, Any]:
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._heard:
            ready, _, _ = select.select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"chromium says nothing for {PATIENCE} s"
            part = os.read(self._in, 1 << 20)
            assert part, f"chromium has ended with {self._process.wait()}"
            self._heard += part
        line, _, self._heard = self._heard.partition(b"\0")
        return dict(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params))
        elif method == "Page.loadEventFired":
            self._loaded = True
