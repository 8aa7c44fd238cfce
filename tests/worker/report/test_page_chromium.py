"""The pages of dpt-trace for reports made by hand, in Chromium: no finding of tests/accept/pages.py. That examination
finds each fault in a page that has it. Skips where chromium is not installed.

Run by ctest: pytest test_page_chromium.py, with DPT_PAGE_SAMPLES naming the program that writes the pages, and
DPT_PAGES a folder for screenshots. With DPT_PAGES_ALL=1 (tests/acceptance measure) it takes every sample on every
screen, else a part of them.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from accept import pages  # noqa: E402

PROGRAM, SHOTS = os.environ["DPT_PAGE_SAMPLES"], Path(os.environ["DPT_PAGES"])
ALL = os.environ.get("DPT_PAGES_ALL") == "1"
SCREENS = pages.SCREENS if ALL else ((380, "light"), (1200, "dark"))


@pytest.fixture(scope="module")
def browser():
    if not pages.find_chromium():
        pytest.skip("chromium is not installed; run: deploy/install-deps pages")
    with pages.Browser() as browser:
        yield browser


def test_samples_have_no_finding(browser, tmp_path):
    subprocess.run([PROGRAM, tmp_path], check=True, timeout=60)
    names = sorted(path.stem for path in tmp_path.glob("*.html"))
    assert len(names) == 8
    findings = []
    for name in names if ALL else ("eight_ranks", "odd_names", "comparison"):
        findings += pages.check_page(browser, tmp_path / f"{name}.html", SHOTS, SCREENS)
        assert len(list(SHOTS.glob(f"{name}-*.png"))) >= len(SCREENS)
    assert findings == []


FAULTS = {
    "script error": '<script>undefined_function()</script>',
    "script says": '<script>console.warn("x")</script>',
    "asks for": '<img src="other.png" alt=""/>',
    "pixels wide": '<p style="width: 1300px">wide</p>',
    "beyond the edge": '<p style="margin-left: -30px">cut</p>',
    "text of 6.0 pixels": '<svg viewBox="0 0 1000 10" width="500"><text font-size="12" y="9">small</text></svg>',
    "text of contrast": '<p style="color: #999; background: #aaa">faint</p>',
    "text of contrast 1.32": '<svg><line x1="0" x2="90" y1="9" y2="9" stroke="#222" stroke-width="18"/>'
                             '<text x="2" y="13">on a line</text></svg>',
    "labels overlap": '<svg role="img"><text x="1" y="9">one</text><text x="9" y="9">two</text></svg>',
}


@pytest.mark.parametrize("finding", FAULTS)
def test_faults_are_found(browser, tmp_path, finding):
    """The examination finds each fault in a page that has it alone."""
    path = tmp_path / "fault.html"
    path.write_text(f"<!DOCTYPE html><html><body><p>text</p>{FAULTS[finding]}</body></html>")
    findings = pages.check_page(browser, path, tmp_path, [(1200, "light")])
    assert any(finding in line for line in findings), findings
