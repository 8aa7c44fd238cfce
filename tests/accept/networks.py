"""The stories of failing networks in namespaces (tests/network_stories.py), again and again."""

import random
import shutil

from accept.harness import NotRun
from cluster import Cluster
from netns import Star, Unavailable
from network_stories import (FROM_PEER, FROM_SERVER, LATEST, LEASE, TO_SERVER, cut_from_one_another,
                             cut_from_the_peer, cut_from_the_server, flapping_link, head_is_cut_off, settings,
                             silent_node)

SILENT, EACH, FLAPS = 20, 5, 10
TIMEOUTS_S = (2, 3, 5)


def play(line, name, timeout_s, story, *args):
    """Plays a story in a network of its own; returns what it returns. Files of a story that fails stay."""
    folder = line.folder / name
    try:
        with Star(3) as star, Cluster(folder, sets=settings(timeout_s)) as cluster:
            found = story(cluster, star, 1, *args)
    except Unavailable as reason:
        raise NotRun(str(reason)) from reason
    shutil.rmtree(folder)
    return found


def tell(line, name, timeout_s, story, *args):
    """Whether the story comes out as it must; a failure is noted."""
    try:
        play(line, name, timeout_s, story, *args)
    except AssertionError as failure:
        line.note(f"{name}: {str(failure).splitlines()[0] if str(failure) else 'a check failed'}")
        return False
    return True


def silent_nodes(line):
    """A node whose link is taken away is found 0.9 to 1.2 times cluster.timeout_s after its last message, and one
    generation follows; timeouts of 2, 3 and 5 s, 20 times."""
    line.command("dpt-rdzv, two dpt-worker in namespaces; ip link set … down")
    ratios = []
    for turn in range(line.repeat(SILENT)):
        timeout_s = TIMEOUTS_S[turn % len(TIMEOUTS_S)]
        ratios.append(play(line, f"silent-{turn}", timeout_s, silent_node) / timeout_s)
    line.note(f"{len(ratios)} nodes, found after {min(ratios):.3f} to {max(ratios):.3f} timeouts")
    line.at_least("soonest, over timeout_s", round(min(ratios), 3), LEASE)
    line.at_most("latest, over timeout_s", round(max(ratios), 3), LATEST)


def count(line, what, names, total):
    line.show(what, len(names), f"== {total}", len(names) == total)


def partitions(line):
    """One-way and two-way partitions between a node and the server, or between two nodes, and a head that is cut off:
    each ends in one generation, never in two beside one another. The server says "peers reach it: cut from the server"
    of the first and "it is cut from its peers" of the second, and of neither the other's."""
    line.command("dpt-rdzv, two dpt-worker in namespaces; ip route add blackhole …, in turn and taken back")
    cuts = {"to the server": (2, cut_from_the_server, [TO_SERVER]),
            "from the server": (2, cut_from_the_server, [FROM_SERVER]),
            "both ways from the server": (2, cut_from_the_server, [TO_SERVER, FROM_SERVER]),
            "from a peer": (1, cut_from_the_peer, [FROM_PEER]),
            "both ways from a peer": (1, cut_from_one_another)}
    turns = line.repeat(EACH)
    for what, (timeout_s, story, *lost) in cuts.items():
        good = [turn for turn in range(turns)
                if tell(line, f"{what.replace(' ', '-')}-{turn}", timeout_s, story, *lost)]
        count(line, f"cut {what}: told apart, one generation", good, turns)
    good = [turn for turn in range(turns) if tell(line, f"head-{turn}", 2, head_is_cut_off)]
    count(line, "the head is cut off: both train on in their generation", good, turns)


def flapping_links(line):
    """A link that comes and goes at seeded times, for shorter and longer than a lease: both nodes end in one
    generation, no step was logged twice in one, and generations of a log only grow."""
    line.command("dpt-rdzv, two dpt-worker in namespaces; ip link set … down and up, six times each")
    turns = line.repeat(FLAPS)
    good = [turn for turn in range(turns)
            if tell(line, f"flap-{turn}", 2, flapping_link, random.Random(1000 * line.seed + turn))]
    count(line, "runs that end in one generation", good, turns)


LINES_OF_NETWORKS = (silent_nodes, partitions, flapping_links)
