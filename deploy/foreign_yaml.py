"""The part of YAML that the configs of other training programs use: block and flow mappings, lists of scalars, quotes
and comments. Other constructs are refused with their line. Also writes a value as YAML."""

import re

DEPTH_MAX = 4


class Unreadable(Exception):
    """A construct that this reader refuses; the text has the line."""


def cut_comment(text):
    """The text without a comment: '#' at its beginning or after a blank, outside quotes."""
    quote = None
    for i, c in enumerate(text):
        if quote:
            quote = None if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c == "#" and (i == 0 or text[i - 1].isspace()):
            return text[:i]
    return text


def as_number(text):
    """The number that an unquoted text represents, or None."""
    if re.fullmatch(r"[-+]?\d[\d_]*", text):
        return int(text.replace("_", ""))
    if re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", text):
        return float(text)
    return None


def scalar(text, line):
    """None, a bool, a number or a string."""
    if text[:1] in ("'", '"'):
        if len(text) < 2 or text[-1] != text[0]:
            raise Unreadable(f"{line}: the quotes of {text} do not end on the line")
        return text[1:-1]
    if text[:1] in ("&", "*", "!", "|", ">", "@", "`", "%"):
        raise Unreadable(f"{line}: '{text}': anchors, tags and texts of several lines are not read; write it out")
    words = {"": None, "~": None, "null": None, "true": True, "yes": True, "on": True, "false": False, "no": False,
             "off": False}
    if text.lower() in words:
        return words[text.lower()]
    found = as_number(text)
    return text if found is None else found


def split_flow(text, line):
    """'a, [b, c]' as its two parts."""
    parts, depth, quote, start = [], 0, None, 0
    for i, c in enumerate(text):
        if quote:
            quote = None if c == quote else quote
        elif c in "'\"":
            quote = c
        elif c in "[{":
            depth += 1
        elif c in "]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    if depth or quote:
        raise Unreadable(f"{line}: brackets or quotes do not end on the line")
    last = text[start:].strip()
    return parts + [last] if last else parts


PAIR = re.compile(r"""("[^"]*"|'[^']*'|[^\s"'#\[\]{},&*!|>%@`-][^#\[\]{},]*?)\s*:(?:\s+|$)(.*)""")


def split_pair(text, line):
    """The key and the value of 'key: value'."""
    found = PAIR.match(text)
    if not found:
        raise Unreadable(f"{line}: '{text}' is no key: value")
    return found[1].strip("\"'"), found[2].strip()


def list_item(text, line):
    """One scalar of a list; this reader accepts no other items."""
    if not text or text[0] in "[{" or re.match(r"[-?](\s|$)", text) or PAIR.match(text):
        raise Unreadable(f"{line}: a list of mappings or of lists is not read; a list has scalars alone")
    return scalar(text, line)


def flatten(path, text, line, ret):
    """Adds the entries of a value: (line, path, scalar or list), and those inside a flow mapping."""
    if len(path) > DEPTH_MAX:
        raise Unreadable(f"{line}: {'.'.join(path)} lies deeper than {DEPTH_MAX} sections")
    if text[:1] in "[{" and text and text[-1] != {"[": "]", "{": "}"}[text[0]]:
        raise Unreadable(f"{line}: brackets do not end on the line")
    if text.startswith("["):
        ret.append((line, path, [list_item(part, line) for part in split_flow(text[1:-1], line)]))
    elif text.startswith("{"):
        for part in split_flow(text[1:-1], line):
            key, value = split_pair(part, line)
            flatten(path + [key], value, line, ret)
    else:
        ret.append((line, path, scalar(text, line)))


def read_yaml(text):
    """[(line, path, scalar or list)] in the order of the text."""
    entries, levels = [], []  # levels: [(indent, key)]
    pending = None  # (indent, line, list) of the key whose value is to come
    closed = -1  # indent of the last key, if its value is complete: nothing is inside it
    for number, raw in enumerate(text.splitlines(), 1):
        content = cut_comment(raw).rstrip()
        if not content.strip() or content in ("---", "..."):
            continue
        indent = len(content) - len(content.lstrip(" "))
        content = content.strip()
        if raw[:indent + 1].endswith("\t"):
            raise Unreadable(f"{number}: a tab indents; YAML takes blanks")
        if content == "-" or content.startswith("- "):
            if pending is None or indent < pending[0]:
                raise Unreadable(f"{number}: a list that is no key's value is not read")
            pending[2].append(list_item(content[1:].strip(), number))
            continue
        while levels and levels[-1][0] >= indent:
            levels.pop()
        if closed >= 0 and indent > closed or pending and pending[2] and indent > pending[0]:
            raise Unreadable(f"{number}: the line is inside a key that has a value already")
        key, value = split_pair(content, number)
        path = [k for _, k in levels] + [key]
        levels.append((indent, key))
        pending, closed = None, indent if value else -1
        if value:
            flatten(path, value, number, entries)
            continue
        pending = (indent, number, [])
        entries.append((number, path, pending[2]))
    inner = {tuple(path[:n]) for _, path, _ in entries for n in range(1, len(path))}
    return [(line, path, None if value == [] and tuple(path) not in inner else value) for line, path, value in entries
            if not (value == [] and tuple(path) in inner)]


QUOTED = re.compile(r"[:#*{}\[\],&!|>%@`\"'\\]|^[-?\s]|\s$")


def as_yaml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return "[" + ", ".join(map(as_yaml, value)) + "]"
    words = str(value)
    if isinstance(value, str) and (QUOTED.search(words) or scalar(words, 0) != words):
        return "'" + words.replace("'", "''") + "'"
    return words
