"""Topic first-light: GPT-2 trains in fp32 across machines that die and return."""

from accept.bad_input import bad_config, bad_data, bad_peers, full_disk
from accept.failures import chaos, kill_rank, kill_worker, leaks, signals_end_all, stopped_worker
from accept.speed import speed_124m, suite_in_time
from accept.stories import disturbed, settings, undisturbed
from cluster import ClusterError

DISTURBED_SEEDS = 2  # a world


def one_hash(line, **keys):
    """Worlds 1, 2, 3 and 4, as separate nodes and as ranks of one node, undisturbed and with kills and joins at seeded
    random times, in separate empty directories, G = 7 and 8 slots: one weights_hash; in each run start_step 0 and a
    loss that falls."""
    seen = set()
    for slots in (7, 8):
        sets = settings(slots, **keys)
        line.command(f"dpt-worker × world 1, 2, 3, 4, G = {slots}, {sets['train.steps']} steps")
        hashes = {}
        for world in (1, 2, 3, 4):
            hashes[f"world {world}"] = undisturbed(line.folder / f"g{slots}-world{world}", world, sets=sets)
            if world > 1:
                hashes[f"world {world} on one node"] = undisturbed(line.folder / f"g{slots}-node{world}", world,
                                                                   one_node=True, sets=sets)
            for i in range(line.repeat(DISTURBED_SEEDS)):
                seed = line.seed * 1000 + slots * 100 + world * 10 + i
                story = disturbed(line.folder / f"g{slots}-disturbed{world}-{i}", seed, world, 4, sets=sets,
                                  must=("join", "kill machine", "kill rank"))
                if story.generations < 3:
                    raise ClusterError(f"seed {seed}: {story.told} made no more than {story.generations} generations")
                hashes[f"world {world}, {story.generations} generations: {', '.join(story.told)} (seed {seed})"] = (
                    story.weights_hash)
        for name, value in hashes.items():
            line.note(f"{value}  G {slots}, {name}")
        line.show(f"distinct weights_hash in {len(hashes)} runs, G = {slots}", len(set(hashes.values())), "== 1",
                  len(set(hashes.values())) == 1)
        seen |= set(hashes.values())
    return seen


def mutation(line):
    """A mutation test flips one gradient bit on one rank and must see another hash; the same run without the flip has
    the hash of the healthy run."""
    sets = settings(8, steps=40)
    healthy = undisturbed(line.folder / "healthy", 2, sets=sets)
    twin = undisturbed(line.folder / "unflipped", 2, one_node=True, sets=sets)
    line.show("weights_hash of two nodes, and of one node of 2 ranks with nothing flipped", f"{healthy} and {twin}",
              "equal", healthy == twin)
    for rank, step in ((0, 20), (1, 38)):
        line.command(f"DPT_TEST_FLIP_GRADIENT_BIT={rank}:{step} dpt-worker, on one node of 2 ranks")
        flipped = undisturbed(line.folder / f"flipped{rank}", 2, one_node=True, sets=sets,
                              env={"DPT_TEST_FLIP_GRADIENT_BIT": f"{rank}:{step}"})
        line.show(f"weights_hash with a gradient bit flipped on rank {rank} in step {step}", flipped,
                  f"not {healthy}", flipped != healthy)


LINES = [one_hash, mutation, kill_rank, kill_worker, stopped_worker, chaos, leaks, signals_end_all, speed_124m,
         suite_in_time, bad_config, bad_data, bad_peers, full_disk]
