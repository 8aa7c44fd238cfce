/* Checkpoints written from shards and read into shards: any number of writers and any cut write the
 * same files as one writer, and any other cut reads them. Contradicting reports are refused. */
#include "tests/checkpoint/checkpoint_fixture.h"

#include "base/fs.h"
#include "base/log.h"
#include "checkpoint/layout/writer_share.h"
#include "checkpoint/manifest.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { BLOCK = 64, WRITERS_MAX = 9, PIECES_MAX = 256, WIDE = 97 };

static struct dpt_err err;

/* The toy model as one flat vector of each kind in four units, each padded to whole blocks. */
enum { UNITS = 4 };
static const int unit_of_tensor[] = {0, 0, 1, 1, 1, 2, 2, 3, 3};

struct flat {
    struct model model;
    int64_t offset[MODEL_TENSORS_MAX], unit[UNITS + 1];
    struct dpt_grid grid;
    float *vector[3];
    bool adapters; /* written in PEFT's format */
};

static int64_t numel(const struct dpt_checkpoint_tensor *tensor)
{
    return tensor->dim[0] * (tensor->ndim == 2 ? tensor->dim[1] : 1);
}

static void flat_init(struct flat *flat, int64_t step)
{
    model_init(&flat->model, step, WIDE);
    int64_t at = 0;
    for (int i = 0; i < flat->model.n; i++) {
        if (i == 0 || unit_of_tensor[i] != unit_of_tensor[i - 1])
            flat->unit[unit_of_tensor[i]] = at = (at + BLOCK - 1) / BLOCK * BLOCK;
        flat->offset[i] = at;
        at += numel(&flat->model.tensors[i]);
    }
    flat->adapters = false;
    flat->unit[UNITS] = (at + BLOCK - 1) / BLOCK * BLOCK;
    flat->grid = (struct dpt_grid){.offset = flat->unit, .n_units = UNITS, .block = BLOCK};
    for (int v = 0; v < 3; v++)
        flat->vector[v] = calloc((size_t)flat->unit[UNITS], sizeof(float));
    for (int i = 0; i < flat->model.n; i++) {
        const struct dpt_checkpoint_tensor *t = &flat->model.tensors[i];
        const size_t bytes = (size_t)numel(t) * sizeof(float);
        memcpy(flat->vector[0] + flat->offset[i], t->param, bytes);
        memcpy(flat->vector[1] + flat->offset[i], t->m, bytes);
        memcpy(flat->vector[2] + flat->offset[i], t->v, bytes);
    }
}

static void flat_fini(struct flat *flat)
{
    for (int v = 0; v < 3; v++)
        free(flat->vector[v]);
    model_fini(&flat->model);
}

/* Pieces of the given intervals; their values are those of the flat vectors. */
static int pieces_of(const struct flat *flat, const struct dpt_interval *intervals, int n,
                     float *const vector[3], struct dpt_checkpoint_piece *ret)
{
    struct dpt_checkpoint_range ranges[PIECES_MAX];
    for (int i = 0; i < n; i++)
        ranges[i] = (struct dpt_checkpoint_range){.first = intervals[i].first,
                                                  .end = intervals[i].end,
                                                  .param = vector[0] + intervals[i].first,
                                                  .m = vector[1] + intervals[i].first,
                                                  .v = vector[2] + intervals[i].first};
    const struct dpt_checkpoint_vector flat_vector = {flat->model.tensors, flat->offset,
                                                      flat->model.n};
    const int n_pieces = dpt_checkpoint_cut(&flat_vector, ranges, n, ret, PIECES_MAX);
    assert_true(n_pieces <= PIECES_MAX);
    return n_pieces;
}

struct writers {
    struct dpt_shard shard[WRITERS_MAX];
    int n;
};

static int pieces_of_writer(const struct flat *flat, const struct writers *writers, int writer,
                            struct dpt_checkpoint_piece *ret)
{
    struct dpt_interval intervals[PIECES_MAX];
    struct dpt_checkpoint_piece pieces[PIECES_MAX];
    struct dpt_share share = {.interval = intervals};
    dpt_writer_share(&flat->grid, writers->shard, writers->n, writer, &share, PIECES_MAX);
    assert_true(share.n <= PIECES_MAX);
    const int n = pieces_of(flat, intervals, share.n, flat->vector, pieces);
    return share.n_replicas > 0
               ? dpt_checkpoint_divide(pieces, n, share.replica, share.n_replicas, ret)
               : 0;
}

static struct dpt_checkpoint_spec spec_of(const struct flat *flat, int64_t step, int writer,
                                          int n_writers, int n_files)
{
    struct dpt_checkpoint_spec spec = model_spec(&flat->model, root, step, writer, n_files);
    spec.writer = writer;
    spec.n_writers = n_writers;
    spec.adapters = flat->adapters;
    return spec;
}

static struct dpt_checkpoint_spec with_pieces(struct dpt_checkpoint_spec spec,
                                              const struct dpt_checkpoint_piece *pieces, int n)
{
    spec.pieces = pieces;
    spec.n_pieces = n;
    return spec;
}

static enum dpt_status write_shards(const struct flat *flat, const struct writers *writers,
                                    int64_t step, int n_files)
{
    struct dpt_checkpoint_piece pieces[PIECES_MAX];
    struct dpt_checkpoint_spec first = {.dir = NULL};
    for (int writer = writers->n - 1; writer >= 0; writer--) {
        const int n = pieces_of_writer(flat, writers, writer, pieces);
        first = with_pieces(spec_of(flat, step, writer, writers->n, n_files), pieces, n);
        DPT_TRY(dpt_checkpoint_write_part(&first, &err));
    }
    DPT_TRY(dpt_checkpoint_collect(&first, 1000, &err));
    return dpt_checkpoint_commit(&first, &err);
}

static char *read_whole_file(const char *folder, const char *name, size_t *ret_bytes)
{
    char path[512], *text;
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, folder, name);
    OK(dpt_fs_read_file(path, 16 << 20, &text, ret_bytes, &err));
    return text;
}

static void same_file(const char *a, const char *b, const char *name)
{
    size_t bytes_a, bytes_b;
    char *text_a = read_whole_file(a, name, &bytes_a), *text_b = read_whole_file(b, name, &bytes_b);
    assert_int_equal(bytes_a, bytes_b);
    assert_memory_equal(text_a, text_b, bytes_a);
    free(text_a);
    free(text_b);
}

/* Compares every file of both except the manifest and state.json, which have step and writers. */
static void same_files(const char *a, const char *b, int n_files)
{
    for (int kind = 0; kind < 3; kind++)
        for (int i = 0; i < n_files; i++) {
            static const char *const prefix[] = {"model", "optimizer/m", "optimizer/v"};
            char name[64];
            (void)snprintf(name, sizeof name, "%s-%05d-of-%05d.safetensors", prefix[kind], i + 1,
                           n_files);
            same_file(a, b, name);
        }
}

static void verify_step(const struct flat *flat, int64_t step)
{
    struct dpt_checkpoint *checkpoint;
    OK(dpt_checkpoint_open(root, step, &checkpoint, &err));
    assert_string_equal(dpt_checkpoint_get_state(checkpoint)->weights_hash, flat->model.hash);
    OK(dpt_checkpoint_verify(checkpoint, &err)); /* every block, the index, the weights hash */
    dpt_checkpoint_close(&checkpoint);
}

/* Reads shard `shard` into zeroed vectors and checks that nothing else changes. */
static void read_shard(const struct flat *flat, int64_t step, struct dpt_shard shard)
{
    struct dpt_interval intervals[UNITS];
    struct dpt_checkpoint_piece pieces[PIECES_MAX];
    struct dpt_checkpoint *checkpoint;
    const size_t n = (size_t)flat->unit[UNITS];
    float *got[3], *expected[3];
    for (int v = 0; v < 3; v++) {
        got[v] = calloc(n, sizeof(float));
        expected[v] = calloc(n, sizeof(float));
    }
    for (int u = 0; u < UNITS; u++) {
        intervals[u] = dpt_shard_piece(&flat->grid, shard, u);
        for (int v = 0; v < 3; v++)
            memcpy(expected[v] + intervals[u].first, flat->vector[v] + intervals[u].first,
                   (size_t)(intervals[u].end - intervals[u].first) * sizeof(float));
    }
    const int n_pieces = pieces_of(flat, intervals, UNITS, got, pieces);
    OK(dpt_checkpoint_open(root, step, &checkpoint, &err));
    OK(dpt_checkpoint_read_pieces(checkpoint, flat->model.tensors, pieces, n_pieces, &err));
    dpt_checkpoint_close(&checkpoint);
    for (int v = 0; v < 3; v++) {
        assert_memory_equal(got[v], expected[v], n * sizeof(float));
        free(got[v]);
        free(expected[v]);
    }
}

static struct writers sharded(int of, int replicas)
{
    struct writers w = {.n = of * replicas};
    for (int i = 0; i < w.n; i++)
        w.shard[i] = (struct dpt_shard){i % of, of};
    return w;
}

/* Any kind and number of writers: the same bytes as one writer, and the model's hash. */
static void any_writers_write_same_files(void **state)
{
    (void)state;
    struct flat flat;
    int64_t step = 10;
    flat_init(&flat, 1);
    const struct writers one = sharded(1, 1);
    OK(write_shards(&flat, &one, 10, 3));
    verify_step(&flat, 10);
    struct writers all[32];
    int n = 0;
    for (int of = 1; of <= 5; of++)
        for (int replicas = 1; of * replicas <= WRITERS_MAX && replicas <= 3; replicas++)
            all[n++] = sharded(of, replicas);
    all[n++] = (struct writers){{{0, 3}, {1, 3}, {2, 3}, {0, 2}, {1, 2}}, 5};
    all[n++] = (struct writers){{{1, 4}, {0, 1}, {0, 4}, {3, 4}, {2, 4}, {0, 1}}, 6};
    for (int i = 0; i < n; i++) {
        char name[32];
        OK(write_shards(&flat, &all[i], ++step, 3));
        (void)snprintf(name, sizeof name, "step-%08lld", (long long)step);
        verify_step(&flat, step);
        if (i > 0) { /* two are kept: compare with the previous one */
            char before[32];
            (void)snprintf(before, sizeof before, "step-%08lld", (long long)step - 1);
            same_files(before, name, 3);
        }
    }
    flat_fini(&flat);
}

static void any_cut_reads(void **state)
{
    (void)state;
    struct flat flat;
    flat_init(&flat, 1);
    for (int a = 1; a <= 5; a++) {
        const struct writers w = sharded(a, a < 3 ? 2 : 1);
        OK(write_shards(&flat, &w, 20, 1 + a % 3));
        for (int b = 1; b <= 5; b++)
            for (int index = 0; index < b; index++)
                read_shard(&flat, 20, (struct dpt_shard){index, b});
    }
    flat_fini(&flat);
}

/* Fewer blocks than writers: some write nothing, slot 0 among them. */
static void more_writers_than_blocks(void **state)
{
    (void)state;
    struct flat flat;
    struct dpt_checkpoint_piece pieces[PIECES_MAX], none[1];
    flat_init(&flat, 1);
    const struct dpt_interval everything = {0, flat.unit[UNITS]};
    const int n = pieces_of(&flat, &everything, 1, flat.vector, pieces);
    for (int writer = 2; writer >= 0; writer--) {
        const struct dpt_checkpoint_spec spec = with_pieces(
            spec_of(&flat, 20, writer, 3, 2), writer == 1 ? pieces : none, writer == 1 ? n : 0);
        OK(dpt_checkpoint_write_part(&spec, &err));
        if (writer > 0)
            continue;
        OK(dpt_checkpoint_collect(&spec, 1000, &err));
        OK(dpt_checkpoint_commit(&spec, &err));
    }
    verify_step(&flat, 20);
    flat_fini(&flat);
}

/* Writers with gaps or overlaps: nothing is committed, and the error names the bytes. */
static void contradicting_pieces(void **state)
{
    (void)state;
    struct flat flat;
    struct dpt_checkpoint_piece pieces[PIECES_MAX];
    flat_init(&flat, 1);
    const struct writers cut = sharded(3, 1);
    for (int round = 0; round < 4; round++) {
        struct dpt_checkpoint_spec spec = {.dir = NULL};
        for (int writer = 2; writer >= 0; writer--) {
            int n = pieces_of_writer(&flat, &cut, writer, pieces);
            if (round == 0 && writer == 1)
                pieces[2].end--; /* a hole */
            if (round == 1 && writer == 1)
                n--;
            if (round == 2 && writer == 1) { /* twice */
                pieces[2].first--;
                pieces[2].param--, pieces[2].m--, pieces[2].v--;
            }
            if (round == 3 && writer == 2)
                n = 0;
            spec = with_pieces(spec_of(&flat, 20, writer, 3, 2), pieces, n);
            OK(dpt_checkpoint_write_part(&spec, &err));
        }
        assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_ECORRUPT);
        if (!strstr(err.text, round == 2 ? "two writers report bytes" : "no writer reports bytes"))
            fail_msg("round %d: %s", round, err.text);
        assert_int_equal(dpt_checkpoint_commit(&spec, &err), DPT_ENOENT);
        dpt_checkpoint_abandon(&spec);
    }
    int64_t newest;
    OK(dpt_checkpoint_newest(root, &newest, &err));
    assert_int_equal(newest, -1);
    flat_fini(&flat);
}

/* PEFT's format, with any number of writers: one file of any size, no index, and no file of a whole
 * model's name. The tensors are the same as in the other format. */
static void adapters_are_one_file(void **state)
{
    (void)state;
    static const char *const names[] = {"adapter_model.safetensors", "adapter_config.json",
                                        "optimizer/m-00001-of-00001.safetensors",
                                        "optimizer/v-00001-of-00001.safetensors"};
    static const char *const absent[] = {"config.json", "model.safetensors.index.json",
                                         "model-00001-of-00001.safetensors"};
    const struct writers cuts[] = {sharded(1, 1), sharded(1, 3), sharded(4, 2)};
    struct flat flat;
    flat_init(&flat, 1);
    flat.adapters = true;
    for (int64_t i = 0; i < 3; i++) {
        char step[32], before[32], path[128];
        OK(write_shards(&flat, &cuts[i], 20 + i, 3));
        (void)snprintf(step, sizeof step, "step-%08lld", 20 + (long long)i);
        (void)snprintf(before, sizeof before, "step-%08lld", 19 + (long long)i);
        for (size_t k = 0; k < sizeof names / sizeof *names && i > 0; k++)
            same_file(before, step, names[k]);
        for (size_t k = 0; k < sizeof absent / sizeof *absent; k++) {
            (void)snprintf(path, sizeof path, "%s/%s", step, absent[k]);
            assert_false(dpt_fs_exists(in_root(path)));
        }
        verify_step(&flat, 20 + i);
        for (int index = 0; index < 3; index++)
            read_shard(&flat, 20 + i, (struct dpt_shard){index, 3});
    }
    flat.adapters = false; /* replaces step 22 */
    OK(write_shards(&flat, &cuts[2], 22, 1));
    assert_false(dpt_fs_exists(in_root("step-00000022/adapter_model.safetensors")));
    verify_step(&flat, 22);
    read_shard(&flat, 22, (struct dpt_shard){1, 2});
    flat_fini(&flat);
}

/* Only one of two writers has adapters: the first writer drops the attempt in both cases. */
static void one_writer_has_adapters(void **state)
{
    (void)state;
    struct flat flat;
    struct dpt_checkpoint_piece pieces[PIECES_MAX];
    const struct writers cut = sharded(2, 1);
    flat_init(&flat, 1);
    for (int round = 0; round < 2; round++) {
        struct dpt_checkpoint_spec spec = {.dir = NULL};
        for (int writer = 1; writer >= 0; writer--) {
            flat.adapters = writer == round;
            const int n = pieces_of_writer(&flat, &cut, writer, pieces);
            spec = with_pieces(spec_of(&flat, 20, writer, 2, 1), pieces, n);
            OK(dpt_checkpoint_write_part(&spec, &err));
        }
        assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_ECORRUPT);
        assert_non_null(strstr(err.text, round == 0
                                             ? "'model-00001-of-00001.safetensors', which are"
                                             : "'adapter_model.safetensors', which are"));
        dpt_checkpoint_abandon(&spec);
    }
    flat_fini(&flat);
}

/* A block of the weights hash that no writer holds whole is read back, and damage in it is found.
 */
static void read_back_finds_damage(void **state)
{
    (void)state;
    struct flat flat;
    struct dpt_checkpoint_piece pieces[PIECES_MAX];
    struct dpt_checkpoint_spec spec = {.dir = NULL};
    flat_init(&flat, 1);
    const struct writers cut = sharded(2, 1);
    for (int writer = 1; writer >= 0; writer--) {
        const int n = pieces_of_writer(&flat, &cut, writer, pieces);
        spec = with_pieces(spec_of(&flat, 20, writer, 2, 1), pieces, n);
        OK(dpt_checkpoint_write_part(&spec, &err));
    }
    /* The second writer's first byte of the embedding lies in the middle of a block. */
    assert_true(pieces[0].tensor == 0 && pieces[0].end % 65536 != 0);
    int fd = open(in_root(".tmp-step-00000020-g7-a1/model-00001-of-00001.safetensors"), O_RDWR);
    assert_true(fd >= 0);
    const int64_t at = 1200 + pieces[0].end * 4; /* after this byte: the header is shorter */
    assert_int_equal(pwrite(fd, "damage", 6, at), 6);
    assert_int_equal(close(fd), 0);
    assert_int_equal(dpt_checkpoint_collect(&spec, 1000, &err), DPT_ECORRUPT);
    assert_non_null(strstr(err.text, "model-00001-of-00001.safetensors' is damaged in block 0"));
    dpt_checkpoint_abandon(&spec);
    flat_fini(&flat);
}

static void bad_pieces(void **state)
{
    (void)state;
    struct flat flat;
    flat_init(&flat, 1);
    float x = 0;
    const struct dpt_checkpoint_piece bad[][2] = {
        {{1, 0, 10, &x, &x, &x}, {0, 0, 10, &x, &x, &x}},
        {{1, 0, 10, &x, &x, &x}, {1, 9, 12, &x, &x, &x}},
        {{1, 0, 10, &x, &x, &x}, {1, 10, 10, &x, &x, &x}},
        {{1, 0, 10, &x, &x, &x}, {2, 0, 34, &x, &x, &x}},
        {{1, -1, 10, &x, &x, &x}, {2, 0, 1, &x, &x, &x}},
        {{1, 0, 1, &x, &x, &x}, {9, 0, 1, &x, &x, &x}},
        {{-1, 0, 1, &x, &x, &x}, {2, 0, 1, &x, &x, &x}},
        {{1, 0, 1, &x, &x, &x}, {2, 0, 1, NULL, &x, &x}},
        {{1, 0, 1, &x, &x, &x}, {2, 0, 1, &x, NULL, &x}},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct dpt_checkpoint_spec spec = with_pieces(spec_of(&flat, 20, 0, 1, 1), bad[i], 2);
        assert_int_equal(dpt_checkpoint_write_part(&spec, &err), DPT_EINVAL);
    }
    assert_false(dpt_fs_exists(in_root(".tmp-step-00000020-g7-a1")));
    flat_fini(&flat);
}

static void runs_joined(void **state)
{
    (void)state;
    enum { BYTES = 5 * DPT_CHECKPOINT_BLOCK_BYTES / 2 };
    static uint8_t data[BYTES];
    uint32_t x = 3;
    for (int i = 0; i < BYTES; i++)
        data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
    struct dpt_manifest whole = {.writer = 0};
    struct dpt_manifest_file *file;
    OK(dpt_manifest_add(&whole, "f", 0, &file, &err));
    OK(dpt_manifest_add_bytes(file, data, BYTES, &err));
    assert_int_equal(file->n_crc, 3);
    assert_int_equal(file->crc[0], dpt_crc32c(0, data, DPT_CHECKPOINT_BLOCK_BYTES));
    for (int round = 0; round < 200; round++) {
        struct dpt_manifest parts = {.writer = 0}, other = {.writer = 1};
        for (int at = 0; at < BYTES;) {
            x = x * 1664525u + 1013904223u;
            int n = round % 2 ? (int)(x >> 12) : (int)(x >> 18); /* up to a block, or much less */
            n = n < BYTES - at ? n : BYTES - at;
            OK(dpt_manifest_add(x & 256 ? &parts : &other, "f", at, &file, &err));
            OK(dpt_manifest_add_bytes(file, data + at, (size_t)n / 2, &err));
            OK(dpt_manifest_add_bytes(file, data + at + n / 2, (size_t)(n - n / 2), &err));
            at += n;
        }
        OK(dpt_manifest_take(&parts, &other, &err));
        OK(dpt_manifest_join(&parts, &err));
        assert_int_equal(parts.n_files, 1);
        assert_int_equal(parts.files[0].bytes, BYTES);
        assert_int_equal(parts.files[0].n_crc, 3);
        assert_memory_equal(parts.files[0].crc, whole.files[0].crc, 3 * sizeof(uint32_t));
        dpt_manifest_fini(&parts);
    }
    dpt_manifest_fini(&whole);
}

static int quiet(void **state)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    return make_fast_root(state);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, quiet, remove_root)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(any_writers_write_same_files), TEST(any_cut_reads),
        TEST(more_writers_than_blocks),     TEST(contradicting_pieces),
        TEST(adapters_are_one_file),        TEST(one_writer_has_adapters),
        TEST(read_back_finds_damage),       TEST(bad_pieces),
        cmocka_unit_test(runs_joined)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
