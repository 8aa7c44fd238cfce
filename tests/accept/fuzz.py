"""The line of daily-bread about fuzzing."""

import json
import subprocess

from cluster import ROOT, ClusterError

WANTED = {"decoders": 100_000_000, "sequences": 1_000_000}


def fuzzed(line):
    """10^8 decoder runs, 10^6 protocol sequences, no crash, no assert, no broken invariant, with libFuzzer,
    AddressSanitizer and UndefinedBehaviorSanitizer. Earlier runs of the same programs count, so that an interrupted
    line continues."""
    for group, wanted in WANTED.items():
        runs, path = max(1, round(wanted * line.scale)), line.folder / f"{group}.json"
        argv = [ROOT / "tests" / "fuzz" / "run", "--runs", runs, "--json", path, group]
        line.command(argv)
        code = subprocess.run([str(a) for a in argv]).returncode
        if not path.exists():
            raise ClusterError(f"tests/fuzz/run: exit {code}")
        result = json.loads(path.read_text())
        line.note(result["build"])
        for target in result["targets"]:
            line.note(f"{target['name']}: {target['runs']:,} executions, {target['runs_per_cpu_s']:,.0f} a CPU second, "
                      f"{target['edges']} of {target['edges_of']} edges")
            for finding in target["findings"]:
                line.note(f"FOUND {finding['what']}: {finding['file']}")
        line.at_least(f"executions, {group}", result["runs"], runs)
        line.show(f"findings, {group}", result["findings"], "== 0", result["findings"] == 0)
