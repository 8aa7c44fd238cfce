"""docs/operations.md: each message that it quotes is in the programs; each option, key and link exists. Run by ctest,
with DPT_BIN naming the programs."""

import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("DPT_BIN", ROOT / "build" / "bin"))
PAGE = (ROOT / "docs" / "operations.md").read_text()
FOLDERS = ("base", "rendezvous", "checkpoint", "worker")
LEAST_MESSAGES, TIMEOUT_S = 25, 60
OTHERS = {"--set", "--port", "--config"}


def literals():
    """The string literals of the product's C files, adjacent ones joined, with … for each conversion."""
    text = ""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.c")):
            code = re.sub(r'"\s*(?:PRI\w+)\s*"', "d", path.read_text())
            for found in re.findall(r'(?:"(?:[^"\\]|\\.)*"\s*)+', code):
                joined = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', found))
                text += re.sub(r"%[-+ #0]*[\d*]*(?:\.[\d*]+)?(?:ll|l|z|h)?[a-zA-Z]", "…", joined) + "\n"
    return text


def messages():
    """What the page quotes and is no option, path or key: code of several words."""
    quoted = re.findall(r"`([^`]+)`", re.sub(r"^```.*?^```", "", PAGE, flags=re.M | re.S))
    return [" ".join(each.split()) for each in quoted if len(each.split()) >= 3 and not each.startswith("dpt-")]


def test_messages_are_in_the_programs():
    known, found = literals(), messages()
    assert len(found) >= LEAST_MESSAGES
    parts = [part.strip(" '()") for each in found for part in each.split("…")]
    missing = sorted({part for part in parts if len(part) >= 8 and part not in known})
    assert not missing


def test_a_wrong_message_is_found():
    known = literals()
    assert "the server at … is gone; training goes on" in known and "the server is gone for good" not in known


def test_options_exist():
    helps = "".join(subprocess.run([BIN / name, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S).stdout
                    for name in ("dpt-rdzv", "dpt-worker", "dpt-doctor", "dpt-ctl"))
    known = set(re.findall(r"--[a-z][a-z-]+", helps)) | OTHERS
    assert sorted(set(re.findall(r"--[a-z][a-z-]+", PAGE)) - known) == []


def test_commands_of_dpt_ctl_exist():
    usage = subprocess.run([BIN / "dpt-ctl", "--help"], capture_output=True, text=True, timeout=TIMEOUT_S).stdout
    known = set(re.findall(r"^  ([a-z]+)\b", usage, re.M))
    named = set(re.findall(r"`?dpt-ctl ([a-z]+)", PAGE))
    assert {"save", "stop", "nodes"} <= named and sorted(named - known) == []


def test_keys_exist():
    config = (ROOT / "docs" / "config.md").read_text()
    keys = set(re.findall(r"`((?:cluster|checkpoint|log|train)\.\w+)`", PAGE))
    assert len(keys) >= 5 and sorted(key for key in keys if f"`{key}`" not in config) == []


def anchors(path):
    heads = re.findall(r"^#+ (.+)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_links_lead_somewhere():
    for page, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", PAGE):
        path = (ROOT / "docs" / page).resolve() if page else ROOT / "docs" / "operations.md"
        assert path.exists(), page
        assert not anchor or anchor in anchors(path), f"{page}#{anchor}"
