"""Bar charts of figures that are close, extreme, and at every place of the grid, in Chromium: no finding of
tests/accept/pages.py. Exit code 77 where chromium is not installed. Standard library only.

    python3 test_charts.py build/tests/test_worker_bench_charts
"""

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from accept import pages  # noqa: E402


def main(program):
    if not pages.find_chromium():
        print("chromium is not installed; run: deploy/install-deps pages")
        return 77
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "charts.html"
        subprocess.run([program, page], check=True, timeout=30)
        with pages.Browser() as browser:
            findings = pages.check_page(browser, page, folder, [(380, "light"), (1200, "dark")])
    assert findings == [], "\n".join(findings)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
