"""HTML pages in Debian's Chromium without a screen: what a person would find wrong with them. Standard library only.

    with Browser() as browser:
        for finding in check_page(browser, path, folder):  # folder: where the screenshots are kept
            print(finding)

A page is opened at 380 and 1200 pixels, in light and in dark colours. A finding is a line: an error or a message of a
script, a request for anything but the page, contents wider than the screen, text too small or too faint to read, labels
of a picture that overlap. The browser is driven through two pipes, by the protocol of its developer tools."""

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

SCREENS = tuple((width, scheme) for width in (380, 1200) for scheme in ("light", "dark"))
TIMEOUT_S = 60
TEXT_PIXELS_MIN, CONTRAST_MIN = 9.5, 4.5
SCREENSHOT_HEIGHT_MAX = 16_000  # pixels; a longer page is cut

# Opens every <details>, so that its contents are examined, too.
OPEN = "for (const part of document.querySelectorAll('details')) part.open = true"

# What is wrong with the page at this size. WCAG 2.2, section 1.4.3, has the contrast: (L1 + 0.05) / (L2 + 0.05).
EXAMINE = """
(() => {
  const found = [], words = text => text.trim().replace(/\\s+/g, ' ').slice(0, 40);
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth)
    found.push(`the page is ${root.scrollWidth} pixels wide, the screen ${innerWidth}`);
  const rgba = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const paint = element => {
    const style = getComputedStyle(element);
    const is_shape = element instanceof SVGElement && !(element instanceof SVGSVGElement);
    const shape_paint = element instanceof SVGLineElement ? style.stroke : style.fill; // a line has no inside
    if (element instanceof SVGTextElement || (is_shape && !shape_paint.startsWith('rgb'))) return null;
    const colour = rgba(is_shape ? shape_paint : style.backgroundColor);
    return colour.length === 3 || colour[3] > 0.5 ? colour : null;
  };
  const behind = (element, box) => {
    const stack = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    let parents = stack.includes(element) ? stack : [];
    if (!parents.length)
      for (let each = element; each; each = each.parentElement) parents.push(each);
    for (const each of parents) { const colour = paint(each); if (colour) return colour; }
    return [255, 255, 255];
  };
  const walker = document.createTreeWalker(document.body || root, NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest('title, style, script')) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const box = range.getBoundingClientRect(), style = getComputedStyle(element);
    if (!box.width || style.visibility === 'hidden') continue;
    const scrolls = each =>
      each && (/auto|scroll/.test(getComputedStyle(each).overflowX) || scrolls(each.parentElement));
    if ((box.left < -1 || box.right > innerWidth + 1) && !scrolls(element))
      found.push(`text beyond the edge of the screen: ${words(node.data)}`);
    const is_svg = element instanceof SVGElement;
    const scale = is_svg ? Math.abs(element.getScreenCTM().a) : 1;
    if (parseFloat(style.fontSize) * scale < SIZE)
      found.push(`text of ${(parseFloat(style.fontSize) * scale).toFixed(1)} pixels: ${words(node.data)}`);
    const one = light(rgba(is_svg ? style.fill : style.color)), two = light(behind(element, box));
    const contrast = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
    if (contrast < CONTRAST) found.push(`text of contrast ${contrast.toFixed(2)}: ${words(node.data)}`);
  }
  for (const picture of document.querySelectorAll('svg[role=img]')) {
    const labels = [...picture.querySelectorAll('text')].filter(each => !each.closest('svg svg'))
      .map(each => [each.textContent, each.getBoundingClientRect()]).filter(each => each[1].width);
    labels.sort((a, b) => a[1].left - b[1].left);
    labels.forEach(([text, box], i) => {
      for (let k = i + 1; k < labels.length && labels[k][1].left < box.right - 1; k++) {
        const [other, there] = labels[k];
        if (Math.min(box.bottom, there.bottom) - Math.max(box.top, there.top) > 5)
          found.push(`labels overlap: ${words(text)} | ${words(other)}`);
      }
    });
  }
  return [...new Set(found)].slice(0, 20);
})()
""".replace("SIZE", str(TEXT_PIXELS_MIN)).replace("CONTRAST)", f"{CONTRAST_MIN})")


class BrowserError(Exception):
    """The browser did not start, ended, or did not answer in time."""


def find_chromium():
    """The path of the browser, or None: deploy/install-deps pages installs it."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Browser:
    """One browser with one page. Everything that it writes is in a temporary folder."""

    def __enter__(self):
        program = find_chromium()
        if not program:
            raise BrowserError("there is no chromium; run: deploy/install-deps pages")
        self.folder = tempfile.TemporaryDirectory(prefix="dpt-pages-")
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        # The browser reads from descriptor 3 and writes to 4, so both must be free before they are set.
        ends = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in (to_browser, from_browser)]
        os.close(to_browser)
        os.close(from_browser)
        argv = [program, "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu",
                "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions", "--disable-background-networking",
                "--hide-scrollbars", "--force-color-profile=srgb", f"--user-data-dir={self.folder.name}/profile"]
        self.log = open(f"{self.folder.name}/log", "w+b")
        self.process = subprocess.Popen(
            ["/bin/bash", "-c", f'exec 3<&{ends[0]} 4>&{ends[1]} {ends[0]}<&- {ends[1]}>&- "$@"', "bash", *argv],
            pass_fds=ends, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, start_new_session=True,
            env=dict(os.environ, HOME=self.folder.name))
        for fd in ends:
            os.close(fd)
        self.number, self.unread, self.events, self.session = 0, b"", [], None
        try:
            target = self.call("Target.createTarget", url="about:blank")["targetId"]
            self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Inspector", "Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(BrokenPipeError):  # it has ended already
            os.write(self.write_fd, b'{"id": 0, "method": "Browser.close"}\0')
        os.close(self.write_fd)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.read_fd)
        self.log.close()
        self.folder.cleanup()

    def _receive(self, deadline):
        """The next message."""
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.read_fd], [], [], max(0, deadline - time.monotonic()))
            data = os.read(self.read_fd, 1 << 20) if ready else b""
            if not data:
                self.log.seek(0)
                said = self.log.read()[-500:].decode(errors="replace")
                raise BrowserError(f"the browser {'ended' if ready else 'did not answer in time'}: {said}")
            self.unread += data
        message, _, self.unread = self.unread.partition(b"\0")
        return json.loads(message)

    def call(self, method, **params):
        """Calls a method of the protocol, and returns its result. Events that come before it are kept."""
        self.number += 1
        request = {"id": self.number, "method": method, "params": params}
        if self.session:
            request["sessionId"] = self.session
        data = json.dumps(request).encode() + b"\0"
        try:
            while data:
                data = data[os.write(self.write_fd, data):]
        except BrokenPipeError:
            raise BrowserError(f"{method}: the browser ended") from None
        deadline = time.monotonic() + TIMEOUT_S
        while (message := self._receive(deadline)).get("id") != self.number:
            if message.get("method") == "Inspector.targetCrashed":
                raise BrowserError(f"{method}: the page's process ended, perhaps for want of memory")
            self.events.append(message)
        if "error" in message:
            raise BrowserError(f"{method}: {message['error']['message']}")
        return message["result"]

    def evaluate(self, script):
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"the examination failed: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def open(self, path, width, scheme):
        """Opens a page on a screen of this width."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.events = []
        self.address = Path(path).resolve().as_uri()
        if "errorText" in (answer := self.call("Page.navigate", url=self.address)):
            raise BrowserError(f"{self.address}: {answer['errorText']}")
        deadline = time.monotonic() + TIMEOUT_S
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive(deadline))

    def messages(self):
        """What the page said and asked for since it was opened, a line each."""
        return [line for event in self.events if (line := self._message(event))]

    def _message(self, event):
        method, params = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            return f"script error: {params['exceptionDetails'].get('text')}"
        if method == "Runtime.consoleAPICalled":
            return f"script says: {params['args'][:1]}"
        if method == "Log.entryAdded":
            return f"browser says: {params['entry']['text']}"
        if method == "Network.requestWillBeSent":
            url = params["request"]["url"]
            return None if url == self.address or url.startswith("data:") else f"asks for {url}"
        return None

    def content_height(self):
        return int(self.call("Page.getLayoutMetrics")["cssContentSize"]["height"])

    def screenshot(self, path, width):
        """Writes the whole page as a PNG."""
        clip = {"x": 0, "y": 0, "width": width, "height": min(self.content_height(), SCREENSHOT_HEIGHT_MAX), "scale": 1}
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        Path(path).write_bytes(base64.b64decode(shot["data"]))


def check_page(browser, path, folder, screens=SCREENS, name=None):
    """The findings of one page or SVG picture, each with width and scheme. folder/NAME-WIDTH-SCHEME.png are the
    screenshots; `name`: the file's, without its ending."""
    findings, name = [], name or Path(path).stem
    Path(folder).mkdir(parents=True, exist_ok=True)
    for width, scheme in screens:
        browser.open(path, width, scheme)
        browser.screenshot(Path(folder) / f"{name}-{width}-{scheme}.png", width)
        browser.evaluate(OPEN)
        # The examination looks at points of the screen, so all of the page must be on it.
        browser.call("Emulation.setDeviceMetricsOverride", width=width, height=browser.content_height(),
                     deviceScaleFactor=1, mobile=False)
        found = browser.evaluate(EXAMINE) + browser.messages()
        findings += [f"{name} at {width} pixels, {scheme}: {line}" for line in found]
    return findings
