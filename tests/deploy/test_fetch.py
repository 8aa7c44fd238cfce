"""deploy/fetch with local folders in place of publishers: arguments, checksums, cache, continuation. Nothing is
downloaded."""

import fcntl
import hashlib
import io
import os
import re
import subprocess
import tarfile
from pathlib import Path

import pytest

FETCH = Path(__file__).resolve().parents[2] / "deploy" / "fetch"
VAL, FIRST, SECOND = "fineweb_val_000000.bin", "fineweb_train_000001.bin", "fineweb_train_000002.bin"
TIMEOUT_S = 60


def digest(data):
    return hashlib.sha256(data).hexdigest()


class World:
    """A publisher's folder, a folder to fetch to and a cache."""

    def __init__(self, root):
        self.source, self.dir, self.cache = root / "source", root / "dir", root / "cache"
        self.files = {name: name.encode() * 5000 for name in (VAL, FIRST, SECOND)}
        self.source.mkdir()
        self.publish()

    def publish(self):
        for name, data in self.files.items():
            (self.source / name).write_bytes(data)
        (self.source / "SHA256SUMS").write_text("".join(f"{digest(d)}  {n}\n" for n, d in self.files.items()))

    def run(self, *args, code=0, source=None, dir=None):
        argv = [FETCH, "fineweb-10b", "--source", f"file://{source or self.source}", "--dir", dir or self.dir,
                "--cache", self.cache, *args]
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def check(self, *names, dir=None):
        """Checks that the folder has these files with the right content, their checksums, and nothing else."""
        dir = dir or self.dir
        assert sorted(p.name for p in dir.iterdir()) == sorted([*names, "SHA256SUMS"])
        for name in names:
            assert (dir / name).read_bytes() == self.files[name]
        lines = (dir / "SHA256SUMS").read_text().splitlines()
        assert sorted(lines) == sorted(f"{digest(self.files[n])}  {n}" for n in names)
        assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=dir).returncode == 0


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.mark.parametrize("args, says", [
    ([], "name a SET"), (["nothing"], "there is no set 'nothing'"),
    (["fineweb-10b", "gpt2-vocab"], "one SET at a time"), (["fineweb-10b", "--shards"], "--shards needs a value"),
    (["fineweb-10b", "--shards", "0"], "expected a number from 1"),
    (["fineweb-10b", "--shards", "104"], "--shards: fineweb-10b has 103"),
    (["fineweb-10b", "--shards", "1e3"], "expected a number from 1"),
    (["fineweb-10b", "--shards", "99999999999999999999"], "expected a number from 1"),
    (["yelp", "--shards", "2"], "--shards: yelp has no shards"),
    (["gpt2-vocab", "--shards", "1"], "--shards: gpt2-vocab has no shards"),
    (["nothing", "--shards", "1"], "there is no set 'nothing'"),
    (["fineweb-10b", "--source", "ftp://x"], "expected https://"), (["fineweb-10b", "--fast"], "unknown option '--fast'"),
])
def test_arguments(tmp_path, args, says):
    done = subprocess.run([FETCH, *args], capture_output=True, text=True, timeout=TIMEOUT_S, cwd=tmp_path,
                          env=dict(os.environ, XDG_CACHE_HOME=str(tmp_path / "c")))
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_help():
    done = subprocess.run([FETCH, "--help"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0 and "--shards N" in done.stdout


def test_fetch_and_again(world):
    said = world.run()
    assert said.count("fetching") == 2 and 'train: "' in said
    world.check(VAL, FIRST)
    before = (world.dir / FIRST).stat().st_mtime_ns
    said = world.run("--shards", "2")
    assert said.count("is here") == 2 and said.count("fetching") == 1
    world.check(VAL, FIRST, SECOND)
    assert (world.dir / FIRST).stat().st_mtime_ns == before
    # With all files here the publisher is not asked.
    world.source.rename(world.source.with_name("gone"))
    assert world.run("--shards", "2").count("is here") == 3


@pytest.mark.parametrize("name", ["gpt2-124m", "fsdp"])
def test_configs_meet_it(world, tmp_path, name):
    """Files fetched to the default folder are the files that a config names."""
    argv = [FETCH, "fineweb-10b", "--source", f"file://{world.source}", "--shards", "2", "--cache", world.cache]
    subprocess.run([str(a) for a in argv], check=True, capture_output=True, timeout=TIMEOUT_S, cwd=tmp_path)
    text = (FETCH.parents[1] / "configs" / f"{name}.yaml").read_text()
    for key, names in ("train", [FIRST, SECOND]), ("val", [VAL]):
        pattern = re.search(rf'^data:\n(?:  .*\n)*?  {key}: "(.*)"', text, re.M).group(1)
        assert sorted(p.name for p in tmp_path.glob(pattern)) == names


def test_cache(world, tmp_path):
    world.run()
    said = world.run(dir=tmp_path / "other")
    assert said.count("from the cache") == 2
    world.check(VAL, FIRST, dir=tmp_path / "other")
    # Damaged in the cache: fetched anew.
    (world.cache / FIRST).unlink()
    (world.cache / FIRST).write_bytes(b"damaged")
    assert world.run(dir=tmp_path / "third").count("from the cache") == 1
    world.check(VAL, FIRST, dir=tmp_path / "third")


def test_goes_on(world):
    data = world.files[FIRST]
    world.cache.mkdir()
    (world.cache / f"{FIRST}.part").write_bytes(data[:1234])
    (world.cache / f"{VAL}.part").write_bytes(world.files[VAL])  # complete, and died before its rename
    world.run()
    world.check(VAL, FIRST)
    # Parts of something else, shorter and longer than the file, are given up.
    for wrong in (b"x" * 100, b"x" * (len(data) + 100)):
        for folder in (world.dir, world.cache):
            (folder / FIRST).unlink()
        (world.dir / "SHA256SUMS").unlink()
        (world.cache / f"{FIRST}.part").write_bytes(wrong)
        world.run()
        world.check(VAL, FIRST)
        assert not (world.cache / f"{FIRST}.part").exists()


def test_a_file_of_the_user(world):
    """A user's file under the name of a shard is never replaced. The shard itself is accepted though no checksum of it
    is kept."""
    world.dir.mkdir()
    for mine in (world.dir / VAL, world.dir / FIRST):
        mine.write_bytes(b"mine")
        said = world.run(code=1)
        assert f"{mine} is here and is not fineweb-10b's; move it away, or name another --dir" in said
        assert mine.read_bytes() == b"mine"
        mine.unlink()
    world.run()
    (world.dir / "SHA256SUMS").unlink()
    assert world.run().count("is here, checksum right") == 2
    world.check(VAL, FIRST)


def test_wrong_checksum(world):
    (world.source / FIRST).write_bytes(b"not what was published")
    said = world.run(code=1)
    assert "does not have the checksum" in said and "nothing of it was kept" in said
    assert not (world.dir / FIRST).exists() and not list(world.cache.glob(f"{FIRST}*"))
    world.publish()
    world.run()
    world.check(VAL, FIRST)


def test_what_is_kept_counts(world):
    """The publisher changes a file under the same name: the first checksum counts."""
    world.run()
    (world.dir / FIRST).unlink()
    (world.cache / FIRST).unlink()
    old = dict(world.files)
    world.files[FIRST] = b"another edition"
    world.publish()
    assert "does not have the checksum" in world.run(code=1)
    world.files = old
    world.publish()
    world.run()
    world.check(VAL, FIRST)


def test_check(world):
    world.run()
    assert world.run("--check").count("checksum right") == 2
    (world.dir / FIRST).unlink()
    (world.dir / FIRST).write_bytes(b"damaged")
    assert "is here and damaged" in world.run("--check")
    world.check(VAL, FIRST)


def test_pointers_of_git_lfs(world, tmp_path):
    """The layout of Hugging Face: resolve/ has the files, raw/ their Git LFS pointers."""
    files, pointers = tmp_path / "hub" / "resolve" / "main", tmp_path / "hub" / "raw" / "main"
    files.mkdir(parents=True)
    pointers.mkdir(parents=True)
    for name, data in world.files.items():
        (files / name).write_bytes(data)
        (pointers / name).write_text("version https://git-lfs.github.com/spec/v1\n"
                                     f"oid sha256:{digest(data)}\nsize {len(data)}\n")
    world.run(source=files)
    world.check(VAL, FIRST)
    (pointers / SECOND).write_text("not a pointer")
    assert "gives no checksum of" in world.run("--shards", "2", source=files, code=1)
    (pointers / SECOND).unlink()
    assert "could not be fetched" in world.run("--shards", "2", source=files, code=1)
    world.check(VAL, FIRST)


def test_nothing_there(world):
    (world.source / "SHA256SUMS").unlink()
    assert "SHA256SUMS could not be fetched" in world.run(code=1)
    world.publish()
    (world.source / FIRST).unlink()
    assert "failed (curl's code" in world.run(code=1)
    (world.source / "SHA256SUMS").write_text("")
    assert "gives no checksum of" in world.run("--shards", "2", code=1)


def test_vocabulary_is_pinned(tmp_path):
    (tmp_path / "source").mkdir()
    for name in ("vocab.bpe", "encoder.json"):
        (tmp_path / "source" / name).write_text("another vocabulary")
    done = subprocess.run([FETCH, "gpt2-vocab", "--source", f"file://{tmp_path}/source", "--dir", tmp_path / "dir",
                           "--cache", tmp_path / "cache"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 1 and "does not have the checksum" in done.stderr
    assert list((tmp_path / "dir").iterdir()) == []


class Archive:
    """A small archive in the publisher's layout; a copy of deploy/fetch knows its checksum."""

    def __init__(self, root, set_name, archive, folder, files):
        self.source, self.dir, self.cache, self.fetch = root / "source", root / "dir", root / "cache", root / "fetch"
        self.set_name, self.archive, self.folder, self.files = set_name, archive, folder, files
        self.source.mkdir()
        self.pack(self.files)

    def pack(self, files):
        path = self.source / self.archive
        with tarfile.open(path, "w:gz") as archive:
            for name, data in {"readme.txt": b"about", **files}.items():
                member = tarfile.TarInfo(f"{self.folder}/{name}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        script, n = re.subn(f"[0-9a-f]{{64}}(?=  {self.archive})", digest(path.read_bytes()), FETCH.read_text())
        assert n == 1
        self.fetch.write_text(script)
        self.fetch.chmod(0o755)

    def run(self, *args, code=0, fetch=None):
        argv = [fetch or self.fetch, self.set_name, "--source", f"file://{self.source}", "--dir", self.dir, "--cache",
                self.cache, *args]
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == code, (done.stdout, done.stderr)
        return done.stdout + done.stderr

    def check(self):
        assert sorted(p.name for p in self.dir.iterdir()) == sorted(["SHA256SUMS", self.archive, *self.files])
        for name, data in self.files.items():
            assert (self.dir / name).read_bytes() == data
        assert subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=self.dir).returncode == 0


@pytest.fixture
def reviews(tmp_path):
    return Archive(tmp_path, "yelp", "yelp_review_full_csv.tgz", "yelp_review_full_csv",
                   {"train.csv": b'"5","good"\n"1","bad"\n', "test.csv": b'"3","so ""so"""\n'})


@pytest.fixture
def cifar10(tmp_path):
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin", "batches.meta.txt"]
    return Archive(tmp_path, "cifar10", "cifar-10-binary.tar.gz", "cifar-10-batches-bin",
                   {name: bytes([i]) * 3073 for i, name in enumerate(names)})


def test_cifar10(cifar10):
    said = cifar10.run()
    assert said.count("fetching") == 1 and said.count("unpacking") == 7
    assert f'kind: cifar10, train: "{cifar10.dir}/data_batch_*.bin", val: {cifar10.dir}/test_batch.bin' in said
    cifar10.check()
    assert cifar10.run("--check").count("checksum right") == 8
    (cifar10.dir / "data_batch_3.bin").write_bytes(b"damaged")
    assert "data_batch_3.bin: is here and damaged; unpacking it again" in cifar10.run("--check")
    cifar10.check()


def test_cifar10_is_pinned(cifar10):
    assert "does not have the checksum" in cifar10.run(code=1, fetch=FETCH)
    assert list(cifar10.dir.iterdir()) == []


def test_reviews(reviews):
    said = reviews.run()
    assert said.count("fetching") == 1 and said.count("unpacking") == 2
    assert f"train: {reviews.dir}/train.csv" in said and "first_label: 1" in said
    reviews.check()
    assert reviews.run().count("is here") == 3
    assert reviews.run("--check").count("checksum right") == 3


def test_reviews_beside_a_table_of_the_user(reviews):
    reviews.dir.mkdir()
    mine = reviews.dir / "test.csv"
    mine.write_text("my table")
    assert f"{mine} is here and is not yelp's; move it away" in reviews.run(code=1)
    assert mine.read_text() == "my table" and not mine.with_suffix(".csv.new").exists()
    mine.unlink()
    reviews.run()
    reviews.check()


def test_reviews_damaged(reviews):
    """An unpacked file is damaged; then the archive, too, which is the same file as in the cache."""
    reviews.run()
    (reviews.dir / "train.csv").write_bytes(b"damaged")
    assert "train.csv: is here and damaged; unpacking it again" in reviews.run("--check")
    reviews.check()
    (reviews.dir / "test.csv").unlink()
    assert "test.csv: unpacking" in reviews.run()
    reviews.check()
    (reviews.dir / "yelp_review_full_csv.tgz").write_bytes(b"damaged")
    assert "yelp_review_full_csv.tgz: is here and damaged; fetching it again" in reviews.run("--check")
    reviews.check()


def test_reviews_without_the_archive(reviews):
    """The archive may be deleted, also from the cache, while its files are in the folder: it is fetched again only when
    one of them is missing."""
    reviews.run()
    archive, packed = reviews.dir / "yelp_review_full_csv.tgz", reviews.source / "yelp_review_full_csv.tgz"

    def delete():
        archive.unlink()
        (reviews.cache / archive.name).unlink()

    delete()
    packed.rename(packed.with_suffix(".gone"))
    for args, says in ([], "is here\n"), (["--check"], "is here, checksum right\n"):
        said = reviews.run(*args)
        assert said.count(says) == 2 and f"train: {reviews.dir}/train.csv" in said
        assert not archive.exists()
    packed.with_suffix(".gone").rename(packed)
    (reviews.dir / "test.csv").write_bytes(b"damaged")
    said = reviews.run("--check")
    assert "tgz: fetching" in said and "test.csv: is here and damaged; unpacking it again" in said
    reviews.check()
    delete()
    (reviews.dir / "train.csv").unlink()
    said = reviews.run()
    assert "tgz: fetching" in said and "train.csv: unpacking" in said and "test.csv: is here\n" in said
    reviews.check()
    # Without its checksum a file may be anything.
    delete()
    sums = reviews.dir / "SHA256SUMS"
    sums.write_text(re.sub(".{64}  test.csv\n", "", sums.read_text()))
    assert "test.csv: unpacking" in reviews.run()
    reviews.check()


def test_reviews_of_another_archive(reviews):
    """An archive with another checksum is refused from any source; no file of it stays, and a line reports it."""
    assert "does not have the checksum" in reviews.run(code=1, fetch=FETCH)
    assert list(reviews.dir.iterdir()) == []
    reviews.pack({"train.csv": b"1,a\n"})
    assert "yelp_review_full_csv/test.csv could not be unpacked" in reviews.run(code=1)
    assert not (reviews.dir / "test.csv").exists() and not (reviews.dir / "test.csv.new").exists()
    # Another archive under the first one's checksum of a member: it is not mixed with what is here.
    (reviews.dir / "train.csv").unlink()
    sums = reviews.dir / "SHA256SUMS"
    sums.write_text(re.sub("[0-9a-f]{64}(?=  train.csv)", "0" * 64, sums.read_text()))
    assert "train.csv of " in reviews.run(code=1)
    assert not (reviews.dir / "train.csv").exists() and not (reviews.dir / "train.csv.new").exists()


@pytest.mark.parametrize("name", ["yelp", "yelp-32"])
def test_configs_of_reviews(name):
    """The configs name the files at the place and in the form that deploy/fetch yelp writes."""
    text = (FETCH.parents[1] / "configs" / f"{name}.yaml").read_text()
    for line in ("  train: data/yelp/train.csv", "  val: data/yelp/test.csv", "  text_column: 2", "  label_column: 1",
                 "  first_label: 1", "  labels: 5"):
        assert re.search(f"^{line}( |$)", text, re.M), line


def test_one_at_a_time(world):
    world.cache.mkdir()
    with open(world.cache / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "another fetch uses" in world.run(code=1)
    world.run()
