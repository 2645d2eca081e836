"""Headless Chromium over the DevTools protocol on two pipes: no driver program, no port, no network.

    with Browser() as browser:
        page = browser.open(pathlib.Path("report.html"), width=1280)
        page.evaluate("document.title")

Every host name is mapped to "not found", and each request that a page makes is recorded.
Protocol: https://chromedevtools.github.io/devtools-protocol; messages end with a zero byte.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import pathlib
import select
import shutil
import subprocess
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """Not thread safe: one command at a time."""

    def __init__(self, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._next_id = 0
        self._buffer = b""
        self._events: list[dict] = []

    def __enter__(self) -> Browser:
        self._profile = tempfile.TemporaryDirectory(prefix="orrery-chromium-", ignore_cleanup_errors=True)
        # Chromium reads commands from descriptor 3 and writes answers to 4. High numbers first, so
        # that the shell's redirections cannot overwrite one end with the other.
        pipes = [*os.pipe(), *os.pipe()]
        command_read, self._write, self._read, answer_write = (
            fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in pipes
        )
        for fd in pipes:
            os.close(fd)
        arguments = [
            executable() or NAMES[0],
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--hide-scrollbars",
            "--force-color-profile=srgb",
            f"--user-data-dir={self._profile.name}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{command_read} 4>&{answer_write}', "bash", *arguments],
            pass_fds=(command_read, answer_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.call("Browser.close")
        except (RuntimeError, OSError):
            self._process.kill()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._write)
        os.close(self._read)
        self._profile.cleanup()

    def call(self, method: str, session: str | None = None, **params: object) -> dict:
        """Sends one command and returns its result. Throws RuntimeError on an error or on silence."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self._timeout_s
        while True:
            answer = self._receive(deadline)
            if answer is None:
                raise RuntimeError(f"no answer to {method} in {self._timeout_s:g} s")
            if answer.get("id") == self._next_id:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]
            self._events.append(answer)

    def _receive(self, deadline: float) -> dict | None:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(self._read, 1 << 20)
            if not chunk:
                raise RuntimeError("Chromium ended")
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def events(self, session: str) -> list[dict]:
        """Events of a page so far; a command first, so that those sent before it have come in."""
        self.call("Runtime.evaluate", session, expression="0")
        return [event for event in self._events if event.get("sessionId") == session]

    def open(self, path: pathlib.Path, *, width: int, height: int = 900, dark: bool = False) -> Page:
        """Loads a file in a new page and waits until it says that its plots are drawn."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        page = Page(self, session, width, height)
        page.set_dark(dark)
        page.set_width(width)
        self.call("Page.navigate", session, url=path.resolve().as_uri())
        page.wait_for(
            "document.readyState === 'complete' && document.documentElement.dataset.drawn !== undefined"
        )
        return page


class Page:
    def __init__(self, browser: Browser, session: str, width: int, height: int) -> None:
        self._browser, self._session, self._width, self._height = browser, session, width, height

    def set_width(self, width: int) -> None:
        self._width = width
        self._browser.call(
            "Emulation.setDeviceMetricsOverride",
            self._session,
            width=width,
            height=self._height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def set_dark(self, dark: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._browser.call("Emulation.setEmulatedMedia", self._session, features=[feature])

    def evaluate(self, expression: str) -> object:
        result = self._browser.call(
            "Runtime.evaluate", self._session, expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in result:
            raise RuntimeError(result["exceptionDetails"].get("exception", {}).get("description", expression))
        return result["result"].get("value")

    def wait_for(self, condition: str, timeout_s: float = 30.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not true after {timeout_s:g} s: {condition}; {self.errors()}")
            time.sleep(0.05)

    def errors(self) -> list[str]:
        """Uncaught exceptions, and whatever stands as warning or error in the console or the log."""
        found = []
        for event in self._browser.events(self._session):
            params = event.get("params", {})
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"].get("exception", params["exceptionDetails"])))
            elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in (
                "error",
                "warning",
                "assert",
            ):
                found.append(
                    " ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"])
                )
            elif event["method"] == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself included."""
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events(self._session)
            if event["method"] == "Network.requestWillBeSent"
        ]

    def screenshot(self, path: pathlib.Path, *, whole: bool = True) -> None:
        height = self.evaluate("document.documentElement.scrollHeight") if whole else self._height
        clip = {"x": 0, "y": 0, "width": self._width, "height": height, "scale": 1}
        data = self._browser.call(
            "Page.captureScreenshot", self._session, format="png", captureBeyondViewport=True, clip=clip
        )
        path.write_bytes(base64.b64decode(data["data"]))

    def print_pdf(self, path: pathlib.Path) -> None:
        data = self._browser.call(
            "Page.printToPDF", self._session, printBackground=True, preferCSSPageSize=True
        )
        path.write_bytes(base64.b64decode(data["data"]))
