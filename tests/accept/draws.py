"""Command lines and configs made of real keys and options with wrong values, drawn from a seed.

The keys, their types and ranges come from `dpt-worker --help`, the options from every program's help: a new one is
drawn without a change here. A value is wrong for certain (then the exit code is that of a bad command line and the line
names the key), or it may be right by chance: then the run is so small that it ends by itself."""

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

SAID_S = 60  # a program prints its help within this time
SLOW = float(os.environ.get("DPT_TEST_SLOW", "1"))  # of sanitizers
USAGE = {"dpt-worker": 2, "dpt-rdzv": 2, "dpt-ckpt": 2, "dpt-data": 2, "dpt-plan": 2, "dpt-plot": 2,
         "dpt-trace": 2, "dpt-doctor": 2, "dpt-ctl": 2, "dpt-bench": 2}
CODES = {"dpt-worker": {0, 2, 3, 4, 5, 75}, "dpt-rdzv": {0, 2, 4}, "dpt-ckpt": {0, 1, 2}, "dpt-data": {0, 1, 2},
         "dpt-plan": {0, 1, 2}, "dpt-plot": {0, 1, 2}, "dpt-trace": {0, 1, 2}, "dpt-doctor": {0, 1, 2},
         "dpt-ctl": {0, 2, 3, 4}, "dpt-bench": {0, 1, 2}}

BASE = {
    "run": "drawn", "cluster.nnodes": "1", "cluster.threads": "1", "cluster.timeout_s": f"{0.2 * SLOW:g}",
    "model.n_layer": "1",
    "model.n_head": "2", "model.n_embd": "16", "model.context": "16", "model.vocab": "256", "train.steps": "2",
    "train.global_batch": "2", "train.micro_batch": "1", "train.seq_len": "16", "train.eval_tokens": "64",
}


@dataclass
class Draw:
    """One command line. `codes`: its allowed exit codes. `names`: patterns that its line must have; empty: any line."""
    program: str
    args: list
    codes: set
    names: list = field(default_factory=list)
    files: dict = field(default_factory=dict)  # name in the draw's folder: bytes
    note: str = ""
    checkpoints: Path = None  # copied to the draw's folder as "ck"
    damage: float = None  # place of the flipped byte among all bytes of the copy, 0 to 1
    pipe: bool = False  # its folder has a named pipe "pipe" without a writer


@dataclass
class Key:
    path: str
    type: str
    takes: str

    def range(self):
        """(smallest, largest) value of a number, or None."""
        found = re.match(r"(?:above )?(\S+) … (?:below )?([^\s,]+)", self.takes)
        return (found[1], found[2]) if found else None

    def words(self):
        return [word.strip() for word in self.takes.split(",")] if self.type == "word" else []


def said(programs, *argv):
    done = subprocess.run([str(programs / argv[0]), *argv[1:]], capture_output=True, text=True, timeout=SAID_S)
    return done.stdout + done.stderr


def read_keys(programs):
    """Every key of the config, from the program itself."""
    found = re.findall(r"^  (\S+) +\S.*\n {35}([^:;]+)(?:: (.*))?; default ",
                       said(programs, "dpt-worker", "--help"), re.M)
    return [Key(path, type_, takes) for path, type_, takes in found]


def read_options(text):
    """{option: whether it takes a value}."""
    listed = re.findall(r"^  (--[a-z-]+)( [^\s].*?)?(?:  |$)", text, re.M)
    return {**{name: True for name in re.findall(r"(--[a-z-]+) [A-Z]", text)},
            **{name: bool(value) for name, value in listed}}


class Programs:
    """The source of draws: the config keys, and each command with its options."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.keys = read_keys(self.folder)
        self.commands = {("dpt-worker",): read_options(said(self.folder, "dpt-worker", "--help")),
                         ("dpt-rdzv",): read_options(said(self.folder, "dpt-rdzv", "--help")),
                         ("dpt-plan",): read_options(said(self.folder, "dpt-plan", "--help")),
                         ("dpt-plot",): read_options(said(self.folder, "dpt-plot", "--help")),
                         ("dpt-doctor",): read_options(said(self.folder, "dpt-doctor", "--help")),
                         ("dpt-ctl", "runs"): read_options(said(self.folder, "dpt-ctl", "--help")),
                         ("dpt-doctor", "hang"): read_options(said(self.folder, "dpt-doctor", "--help")),
                         ("dpt-ckpt", "generate"): read_options(said(self.folder, "dpt-ckpt", "generate", "--help"))}
        for name in ("ddp", "sharding", "compare", "diff"):
            self.commands["dpt-trace", name] = read_options(said(self.folder, "dpt-trace", "--help"))
        for name in ("list", "show", "verify", "hash"):
            self.commands["dpt-ckpt", name] = {}
        for name in ("encode", "inspect", "verify"):
            self.commands["dpt-data", name] = read_options(said(self.folder, "dpt-data", name, "--help"))
        for name in re.findall(r"^  (\S+)", said(self.folder, "dpt-bench", "--list"), re.M):
            self.commands["dpt-bench", name] = read_options(said(self.folder, "dpt-bench", name, "--help"))
        if len(self.keys) < 60 or not all(self.commands[c] for c in self.commands if c[0] != "dpt-ckpt"):
            raise AssertionError(f"the help is not read right: {len(self.keys)} keys, {self.commands}")


# ---------------------------------------------------------------- values

GARBAGE = ["", " ", "x", "-", "--", "null", "~", "true", "[1, 2", "{a: 1}", "[]", "{}", "'", "\"", "1 2", "1,2", "é",
           "\t", "0x10", "1e", "1_000", "٣", "%s%n", "$(id)", "*a", "&a 1", "!!int 1", "a: b", "x" * 300, "nan", "inf",
           "1\n2", "-inf", "1e400", "-0", "00", "+1", "99999999999999999999999", "-99999999999999999999999"]


def misspell(rng, word):
    at = rng.randrange(len(word))
    return rng.choice([word[:at] + word[at + 1:], word[:at] + rng.choice("abcxyz_.") + word[at:],
                       word[:at] + rng.choice("qvw") + word[at + 1:], word.upper(), word + word[-1], word + "s"])


def wrong_number(rng, key):
    least, most = key.range()
    below = str(int(float(least)) - rng.choice([1, 2, 10 ** 9])) if float(least) > -1e300 else None
    above = str(10 * int(float(most)) + rng.choice([1, 7])) if float(most) < 1e300 else None
    certain = [v for v in (below, above, "x", "nan", "-inf", "1e400", "0x10", "1 2", "[]", "{}", "[a, [b]]", "{x: 1}",
                           "9" * 400, "true") if v is not None]
    if key.type == "integer":
        certain += ["1.5", "1e1000", "00"]
    return rng.choice(certain)


def draw_value(rng, key):
    """(value as text of YAML, whether it is certainly wrong)."""
    if key.range() and key.type in ("integer", "number"):
        if rng.random() < 0.85:
            return wrong_number(rng, key), True
        return BASE.get(key.path) or rng.choice([word for word in ("auto", "null", key.range()[0])
                                                 if word in key.takes]), False
    if key.type == "word":
        word = rng.choice(key.words())
        wrong = misspell(rng, word)
        known = wrong in key.words() or wrong.lower() == "null"
        return (wrong, not known) if rng.random() < 0.7 else (word, False)
    if key.type == "true or false":
        return rng.choice([("yes please", True), ("2", True), ("True!", True), ("[true]", True), ("true", False),
                           ("false", False), ("null", True)])
    if key.type == "text":
        return rng.choice(["[]", "{a: b}", "''", "/dev/null", "/proc/self/mem", "/nonexistent/a/b", "/dev/full", "/sys",
                           ".", "x" * 5000, "\"a\\0b\"", "\"a\\nb\"", "null", "~", "../" * 400 + "sys",
                           "/root/../etc/passwd", "%s%s%n", "*", "[", "x" * 60]), False
    return rng.choice(GARBAGE), False


def as_yaml(values):
    """{path: text} as a config file, sections in order."""
    sections = {}
    for path, value in values.items():
        section, _, leaf = path.rpartition(".")
        sections.setdefault(section, []).append((leaf, value))
    text = "".join(f"{leaf}: {value}\n" for leaf, value in sections.pop("", []))
    for section, leaves in sections.items():
        text += f"{section}:\n" + "".join(f"  {leaf}: {value}\n" for leaf, value in leaves)
    return text


# ---------------------------------------------------------------- draws

class Drawer:
    def __init__(self, programs, rng, text, checkpoints=None):
        self.programs, self.rng, self.checkpoints = programs, rng, checkpoints
        self.base = {**BASE, "data.train": str(text), "data.val": str(text), "log.dir": "log"}

    def good_yaml(self):
        return as_yaml(self.base).encode()

    def worker(self, args, codes, names=(), config=None, note=""):
        config = self.good_yaml() if config is None else config
        return Draw("dpt-worker", ["--config", "c.yaml", *args], set(codes), list(names), {"c.yaml": config}, note)

    def keys_in_file(self):
        """Changes one to three keys of the file: in the file, by --set, or by both."""
        values, certain, sets = dict(self.base), [], []
        for key in self.rng.sample(self.programs.keys, self.rng.choice([1, 1, 2, 3])):
            value, wrong = draw_value(self.rng, key)
            if wrong:
                certain.append(key.path)
            if "\n" in value or self.rng.random() < 0.5:
                sets.append(f"{key.path}={value}")
            else:
                values[key.path] = value
        args = [word for text in sets for word in ("--set", text)]
        return self.worker(args, {2} if certain else {0, 2, 3, 4}, config=as_yaml(values).encode(),
                           note=f"certain: {certain}")

    def one_key(self):
        """A wrong value of one key, which the line must name, with its place."""
        key = self.rng.choice([k for k in self.programs.keys if k.type in ("integer", "number", "word")])
        for _ in range(100):
            value, wrong = draw_value(self.rng, key)
            if wrong:
                break
        if self.rng.random() < 0.5:
            return self.worker(["--set", f"{key.path}={value}"], {2} if wrong else {0, 2, 3, 4}, [key.path])
        values = {**self.base, key.path: value}
        return self.worker([], {2} if wrong else {0, 2, 3, 4}, [r"c\.yaml:\d+:\d+"] if wrong else [],
                           as_yaml(values).encode())

    def misspelt_key(self):
        section, dot, leaf = self.rng.choice(self.programs.keys).path.rpartition(".")
        known = {name for k in self.programs.keys for name in (k.path, k.path.partition(".")[0])}
        dots = max(1, (section + dot).count("."))
        path = section + dot + misspell(self.rng, leaf)
        while path in known or path.count(".") > dots or not path.rpartition(".")[2]:
            path = section + dot + misspell(self.rng, leaf)
        how = self.rng.randrange(3)
        if how == 0:
            return self.worker(["--set", f"{path}=1"], {2}, ["unknown key|section|expected|another program.s word"])
        if how == 1:
            return self.worker(["--allow-change", path], {2}, ["--allow-change: unknown key"])
        return self.worker([], {2}, [r"c\.yaml:\d+:\d+"], self.good_yaml() + f"\n{path}: 1\n".encode()
                           if "." not in path else as_yaml({**self.base, path: "1"}).encode())

    def broken_file(self):
        good = self.good_yaml()
        rng = self.rng
        kind, config, codes = rng.choice([
            ("empty", b"", {2}), ("binary", rng.randbytes(300), {2}), ("zeros", bytes(100), {2}),
            ("mark", b"\xef\xbb\xbf" + good, {0}), ("UTF-16", good.decode().encode("utf-16"), {2}),
            ("carriage returns", good.replace(b"\n", b"\r\n"), {0}), ("tabs", good.replace(b"  ", b"\t"), {2}),
            ("deep", b"a: " * 3 + b"{b: " * 200 + b"}" * 200, {2}), ("brackets", b"[" * 30000, {2}),
            ("twice", good + b"run: x\n", {2}), ("section twice", good + b"train:\n  steps: 3\n", {2}),
            ("long", good + b"#" * 70000, {2}), ("two documents", good + b"---\nrun: x\n", {2}),
            ("list", b"- a\n- b\n", {2}), ("scalar", b"hello\n", {2}), ("alias", good + b"x: *a\n", {2}),
            ("quote", good + b"seed: \"1\n", {2}), ("latin", good + b"# \xe9\xe8\n", {2}), ("cut", good[:40], {2}),
            ("comment", b"# nothing\n", {2}), ("tag", good + b"seed: !!int 3\n", {2}),
            ("keys", b"".join(b"k%d: 1\n" % i for i in range(3000)), {2}), ("merge", good + b"<<: {seed: 1}\n", {2})])
        return self.worker([], codes, [] if codes == {0} else [r"c\.yaml|data\.train"], config, kind)

    def no_file(self):
        path = self.rng.choice([".", "/", "/dev/null", "none.yaml", "/proc/self/mem", "a/b/c", "\udcff", "x" * 5000,
                                "/dev/full", "c.yaml/"])
        return Draw("dpt-worker", ["--config", path], {2}, [], {"c.yaml": b""}, "config file")

    def files_of_keys(self):
        """A folder in place of a file, a file in place of a folder, a path that is not permitted or does not exist."""
        key = self.rng.choice(["data.train", "data.val", "log.dir", "checkpoint.dir", "model.init_from"])
        path = self.rng.choice(["c.yaml", "c.yaml/x", "/dev/null", "/proc/x", "/sys/x", "none", "/sys", "empty", "\t",
                                "pipe"])
        args = ["--set", f"{key}={path}"]
        if key == "data.val":
            args += ["--set", "train.eval_every=1"]
        draw = self.worker(args, {0, 2, 4})
        draw.files["empty"], draw.pipe = b"", True
        return draw

    def named_pipe(self):
        """A pipe without a writer in place of a tokenizer's file. Not as --config, which may be a pipe: the worker
        waits for its writer."""
        tokenizer, keys = self.rng.choice([("hf", ["tokenizer_json"]), ("gpt2", ["vocab_bpe", "encoder_json"])])
        options = ["--tokenizer", tokenizer, *(word for key in keys for word in ("--" + key.replace("_", "-"), "pipe"))]
        program = self.rng.choice(["dpt-worker", "dpt-data", "dpt-ckpt"])
        if program == "dpt-worker":
            sets = [f"data.tokenizer={tokenizer}", *(f"data.{key}=pipe" for key in keys)]
            draw = self.worker([word for text in sets for word in ("--set", text)], {2})
        elif program == "dpt-data":
            draw = Draw(program, ["encode", *options, "--out", "o", "c.yaml"], {1, 2}, files={"c.yaml": b"text"})
        else:
            draw = Draw(program, ["generate", "ck", "--prompt", "a", *options], {1, 2}, checkpoints=self.checkpoints)
        draw.names, draw.pipe = ["'pipe' is no regular file"], True
        return draw

    def spoilt(self, command, right):
        """An option that is misspelt, unknown, repeated far too often, without its value, or with a wrong value."""
        rng, options = self.rng, self.programs.commands[command]
        program, usage = command[0], USAGE[command[0]]
        named = [o for o in options if o not in ("--help", "--version")] or ["--nothing"]
        option = rng.choice(named)
        how = rng.choice(["misspelt", "no value", "positional", "garbage", "value for a flag", "dashes", "many"])
        if how == "misspelt":
            wrong = misspell(rng, option)
            while (wrong in options or any(o.startswith(wrong) for o in options) or not wrong.startswith("--")
                   or "." in wrong):
                wrong = "--" + misspell(rng, option[2:])
            return Draw(program, [*command[1:], *right, wrong, "1"], {usage},
                        [re.escape(wrong[:20])] if options else [], note=how)
        if how == "no value" and options.get(option):
            return Draw(program, [*command[1:], *right, option], {usage}, [re.escape(option)], note=how)
        if how == "positional" and program in ("dpt-worker", "dpt-rdzv"):
            return Draw(program, [*right, rng.choice(GARBAGE[1:])], {usage}, note=how)
        if how == "value for a flag" and options.get(option) is False:
            return Draw(program, [*command[1:], *right, f"{option}=x"], {usage}, [re.escape(option)], note=how)
        if how == "dashes":
            dashes = rng.choice(["--", "---", "--=", "--1", "---nnodes"])
            return Draw(program, [*command[1:], *right, dashes], CODES[program] - {0}, note=how)
        if how == "many" and program == "dpt-worker":
            return Draw(program, [*right, *["--set", "seed=1"] * rng.choice([65, 200])], {usage}, note=how)
        wrong = rng.choice(["x", "-1", "nan", "99999999999999999999999", "1e400", "\udcff", "x" * 5000, "[", "-",
                            "1\n2"])
        if program == "dpt-bench":  # with a valid value it would measure for minutes
            return Draw(program, [*command[1:], option, wrong, "--nothing"], {usage}, note="garbage")
        if command == ("dpt-data", "inspect") or not options.get(option):  # not a second file with its own line
            return Draw(program, [*command[1:], *right, f"{option}={wrong}"], CODES[program], note="garbage")
        return Draw(program, [*command[1:], *right, option, wrong], CODES[program], note="garbage")

    def options(self):
        program = self.rng.choice(list(CODES))
        command = self.rng.choice([each for each in self.programs.commands if each[0] == program])
        right = {"dpt-worker": ["--config", "c.yaml"], "dpt-rdzv": ["--port", "0"], "dpt-plan": ["--config", "c.yaml"],
                 "dpt-plot": ["c.yaml"], "dpt-doctor": [], "dpt-bench": []}.get(command[0])
        if command == ("dpt-ctl", "runs"):
            right = ["--rdzv-endpoint", "127.0.0.1:1", "--timeout-s", "1"]
        if command == ("dpt-doctor", "hang"):
            right = ["--server", "127.0.0.1:1", "--timeout-ms", "100"]
        if right is None:
            right = {"generate": [".", "--prompt", "a"], "diff": ["c.yaml", "c.yaml"],
                     **dict.fromkeys(("ddp", "sharding", "compare"), ["--trace-files", "c.yaml"]),
                     "encode": ["--out", "o", "c.yaml"]}.get(command[1], ["c.yaml"])
        draw = self.spoilt(command, right)
        draw.files["c.yaml"] = self.good_yaml()
        return draw

    def other_commands(self):
        """Commands of the tools without their arguments, or on files that are not theirs."""
        program, names = self.rng.choice([("dpt-ckpt", ["list", "show", "verify", "hash", "generate", "lst", ""]),
                                          ("dpt-data", ["encode", "inspect", "verify", "encod", ""]),
                                          ("dpt-bench", ["", "tran", "--lst"])])
        things = [".", "none", "a\nb", "c.yaml", "/dev/null", "step-00000001", "/sys", "x" * 5000, "\udcff",
                  "noise.bin"]
        args = [name for name in [self.rng.choice(names)] if name]
        if program != "dpt-bench" and args:
            args += self.rng.sample(things, self.rng.randrange(2 if program == "dpt-data" else 3))
        may_be_right = args[:1] in (["encode"], ["inspect"], ["verify"], ["list"])
        codes = CODES[program] if may_be_right else {1, 2}
        return Draw(program, args, codes, [], {"c.yaml": self.good_yaml(), "noise.bin": self.rng.randbytes(2000)})

    def servers(self):
        """Endpoints without a server, and texts that are no endpoint."""
        where = self.rng.choice(["127.0.0.1:1", "127.0.0.1", ":1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:99999",
                                 "[::1]:1", "nowhere.invalid:1", "a b:1", "[::1:1", "127.0.0.1:x", "tcp://127.0.0.1:1",
                                 "*:1", "é:1", "x" * 300 + ":1", "256.1.1.1:1", "0.0.0.0:1"])
        return self.worker(["--rdzv-endpoint", where], {2, 3}, [])

    def valid(self):
        return self.worker([], {0})

    def too_large(self):
        """A model that is too large for any machine."""
        sets = [f"model.n_layer={self.rng.randint(100, 200)}", f"model.n_embd={2 * self.rng.randint(8000, 8192)}"]
        return self.worker([word for text in sets for word in ("--set", text)], {4}, ["too little memory"])

    def on_checkpoints(self):
        """A run with other settings, and the tools, on checkpoints that are complete or have a flipped byte."""
        rng = self.rng
        damage = rng.choice([None, rng.random()])
        if rng.random() < 0.4:
            command = rng.choice(["list", "show", "verify", "hash", "generate"])
            more = {"generate": ["--prompt", "a", "--max-tokens", "3", "--threads", "1"]}.get(command, [])
            codes = {0} if damage is None else {0, 1}
            return Draw("dpt-ckpt", [command, "ck", *more], codes, checkpoints=self.checkpoints, damage=damage)
        key = rng.choice([k for k in self.programs.keys if k.type in ("integer", "number", "word")])
        value, _ = draw_value(rng, key)
        draw = self.worker(["--set", "checkpoint.dir=ck", "--set", f"{key.path}={value}"], {0, 2, 3, 4})
        draw.args += rng.choice([[], [], ["--allow-change", key.path], ["--eval"], ["--eval", "--step", "1"],
                                 ["--eval", "--step", "7"], ["--set", "train.steps=4"]])
        draw.checkpoints, draw.damage = self.checkpoints, damage
        return draw

    def draw(self):
        kinds = [(self.keys_in_file, 26), (self.one_key, 20), (self.misspelt_key, 8), (self.broken_file, 10),
                 (self.no_file, 3), (self.files_of_keys, 8), (self.named_pipe, 3), (self.options, 17),
                 (self.other_commands, 5), (self.servers, 2), (self.valid, 1), (self.too_large, 1),
                 (self.on_checkpoints, 8)]
        return self.rng.choices([k for k, _ in kinds], [w for _, w in kinds])[0]()
