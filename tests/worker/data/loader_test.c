/* The loader: the order of samples is the sampler's at every split, restarts in flight, errors
 * surface in their place, the thread ends promptly, and nothing is allocated between start and
 * stop. */
#include "worker/data/data.h"

#include "base/clock.h"
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/plan/sampler.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { SEQ = 5, MICRO = 3, SLOTS = 7, SAMPLES = 61 };

static char root[128], path[160];
static struct dpt_err err;
static struct dpt_config config;
static struct dpt_data *data;

static int setup(void **state)
{
    (void)state;
    char text[SAMPLES * SEQ + 1];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)(i * 37 ^ i >> 3);
    memset(&config, 0, sizeof config);
    config.seed = 42;
    config.model.vocab = 256;
    config.train.seq_len = SEQ;
    config.train.micro_batch = MICRO;
    config.train.global_batch = MICRO * SLOTS;
    config.data.kind = DPT_DATA_TEXT;
    if (!test_make_dir(root, sizeof root, "loader-test"))
        return -1;
    (void)snprintf(path, sizeof path, "%s/t.txt", root);
    (void)snprintf(config.data.train, sizeof config.data.train, "%s", path);
    return dpt_fs_write_file_atomic(path, text, sizeof text, &err) == DPT_OK &&
                   dpt_data_open(&config, &data, &err) == DPT_OK
               ? 0
               : -1;
}

static int teardown(void **state)
{
    (void)state;
    dpt_data_close(&data);
    return dpt_fs_remove_tree(root, NULL) == DPT_OK ? 0 : -1;
}

static struct dpt_loader *create_loader(void)
{
    struct dpt_loader *loader;
    assert_int_equal(dpt_loader_create(&config, data, &loader, &err), DPT_OK);
    return loader;
}

static enum dpt_status next(struct dpt_loader *loader, int64_t step, int slot,
                            const int32_t **ret_tokens, const int32_t **ret_targets)
{
    struct dpt_batch batch;
    const enum dpt_status status = dpt_loader_next(loader, step, slot, &batch, &err);
    if (status == DPT_OK) {
        *ret_tokens = batch.part[DPT_SAMPLE_INPUT];
        *ret_targets = batch.part[DPT_SAMPLE_TARGET];
    }
    return status;
}

/* The batch of (step, slot), read straight by the definition. */
static void expect_next(struct dpt_loader *loader, int64_t step, int slot)
{
    const int32_t *tokens = NULL, *targets = NULL;
    if (next(loader, step, slot, &tokens, &targets) != DPT_OK)
        fail_msg("step %d slot %d: %s", (int)step, slot, err.text);
    for (int j = 0; j < MICRO; j++) {
        int32_t expected[SEQ], expected_targets[SEQ];
        const struct dpt_batch one = {.part = {expected, expected_targets}};
        const int64_t per_epoch = config.train.epoch_steps;
        const int64_t in_epoch = per_epoch > 0 ? step % per_epoch : step;
        const int64_t epoch = per_epoch > 0 ? step / per_epoch : 0;
        const int64_t i = epoch * SAMPLES + (in_epoch * SLOTS + slot) * MICRO + j;
        const int64_t index = dpt_sampler_index(config.seed, SAMPLES, i);
        assert_int_equal(dpt_data_read(data, index, i, &one, 0, &err), DPT_OK);
        assert_memory_equal(tokens + j * SEQ, expected, sizeof expected);
        assert_memory_equal(targets + j * SEQ, expected_targets, sizeof expected_targets);
    }
}

static void order_is_the_samplers(void **state)
{
    (void)state;
    static const int cuts[] = {0, 0, 3, 4, SLOTS};
    assert_int_equal(dpt_data_samples(data), SAMPLES);
    for (size_t rank = 0; rank + 1 < sizeof cuts / sizeof *cuts; rank++) {
        if (cuts[rank] == cuts[rank + 1])
            continue;
        struct dpt_loader *loader = create_loader();
        dpt_loader_start(loader, 0, cuts[rank], cuts[rank + 1], 1);
        for (int64_t step = 0; step < 20; step++) /* several epochs */
            for (int slot = cuts[rank]; slot < cuts[rank + 1]; slot++)
                expect_next(loader, step, slot);
        dpt_loader_destroy(&loader);
        assert_null(loader);
    }
}

/* With train.epochs each begins its own permutation, also when the loader starts within one. */
static void order_of_epochs(void **state)
{
    (void)state;
    config.train.epoch_steps = SAMPLES / (MICRO * SLOTS);
    struct dpt_loader *loader = create_loader();
    for (int64_t begin = 0; begin < 5; begin++) {
        dpt_loader_start(loader, begin, 1, SLOTS, 2);
        for (int64_t step = begin; step < begin + 8; step++)
            for (int slot = 1; slot < SLOTS; slot += 2)
                expect_next(loader, step, slot);
    }
    dpt_loader_destroy(&loader);
    config.train.epoch_steps++; /* more than there are */
    assert_int_equal(dpt_loader_create(&config, data, &loader, &err), DPT_ECONFIG);
    assert_string_equal(err.text, "data.train has 61 samples, not the 3 steps of 21 that an epoch "
                                  "has by the config");
    config.train.epoch_steps = DPT_AUTO;
}

/* Each epoch has each sample once, whoever reads it. */
static void each_sample_once_an_epoch(void **state)
{
    (void)state;
    int seen[SAMPLES] = {0};
    for (int64_t i = SAMPLES; i < 2 * SAMPLES; i++)
        seen[dpt_sampler_index(config.seed, SAMPLES, i)]++;
    for (int i = 0; i < SAMPLES; i++)
        assert_int_equal(seen[i], 1);
}

/* A re-formation at any moment: other slots, an earlier step, a later one, none at all. */
static void restarts(void **state)
{
    (void)state;
    struct dpt_loader *loader = create_loader();
    uint32_t x = 99;
    for (int round = 0; round < 500; round++) {
        x = x * 1664525u + 1013904223u;
        const int64_t step = (x >> 8) % 50;
        const int first = (int)(x >> 16) % SLOTS,
                  end = first + 1 + (int)(x >> 20) % (SLOTS - first);
        dpt_loader_start(loader, step, first, end, 1);
        const int n = (int)(x >> 26) % 23; /* more than the ring holds, less, none */
        int64_t at_step = step;
        int slot = first;
        for (int i = 0; i < n; i++) {
            expect_next(loader, at_step, slot);
            if (++slot == end) {
                slot = first;
                at_step++;
            }
        }
    }
    dpt_loader_destroy(&loader);
}

/* The samples that next returned stay unchanged until the following next, restarts included. */
static void held_batch_is_not_overwritten(void **state)
{
    (void)state;
    struct dpt_loader *loader = create_loader();
    const int32_t *tokens = NULL, *targets = NULL;
    int32_t copy[MICRO * SEQ], copy_targets[MICRO * SEQ];
    dpt_loader_start(loader, 3, 0, SLOTS, 1);
    expect_next(loader, 3, 0);
    assert_int_equal(next(loader, 3, 1, &tokens, &targets), DPT_OK);
    memcpy(copy, tokens, sizeof copy);
    memcpy(copy_targets, targets, sizeof copy_targets);
    for (int i = 0; i < 200; i++)
        dpt_loader_start(loader, i, 0, SLOTS, 1);
    assert_memory_equal(copy, tokens, sizeof copy);
    assert_memory_equal(copy_targets, targets, sizeof copy_targets);
    expect_next(loader, 199, 0);
    dpt_loader_destroy(&loader);
}

static void wrong_order_is_refused(void **state)
{
    (void)state;
    struct dpt_loader *loader = create_loader();
    const int32_t *tokens = NULL, *targets = NULL;
    assert_int_equal(next(loader, 0, 0, &tokens, &targets), DPT_EINVAL);
    dpt_loader_start(loader, 5, 2, 4, 1);
    assert_int_equal(next(loader, 5, 3, &tokens, &targets), DPT_EINVAL);
    assert_non_null(strstr(err.text, "stands at step 5 slot 2, not at step 5 slot 3"));
    assert_int_equal(next(loader, 4, 2, &tokens, &targets), DPT_EINVAL);
    assert_null(tokens);
    expect_next(loader, 5, 2); /* nothing was consumed */
    dpt_loader_start(loader, 5, 4, 4, 1);
    assert_int_equal(next(loader, 5, 4, &tokens, &targets), DPT_EINVAL);
    assert_non_null(strstr(err.text, "idles"));
    dpt_loader_destroy(&loader);
}

/* The reader's error comes after all that was read before it, comes again, and ends with a start.
 */
static void reader_errors(void **state)
{
    (void)state;
    const int32_t *tokens = NULL, *targets = NULL;
    struct dpt_loader *loader = create_loader();
    char hidden[192];
    (void)snprintf(hidden, sizeof hidden, "%s.hidden", path);
    assert_int_equal(rename(path, hidden), 0);
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(next(loader, 0, 0, &tokens, &targets), DPT_ENOENT);
        assert_non_null(strstr(err.text, "t.txt'"));
    }
    assert_int_equal(rename(hidden, path), 0);
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    expect_next(loader, 0, 0);
    expect_next(loader, 0, 1);
    /* Now in mid-flight: samples read ahead are good, then comes the error. */
    assert_int_equal(rename(path, hidden), 0);
    enum dpt_status status = DPT_OK;
    int good = 0;
    while (status == DPT_OK && good < 100) {
        const int at = 2 + good;
        status = next(loader, at / SLOTS, at % SLOTS, &tokens, &targets);
        good += status == DPT_OK;
    }
    assert_int_equal(status, DPT_ENOENT);
    assert_true(good <= 9);
    dpt_loader_destroy(&loader);
}

/* At every moment: before any start, with a full ring, in mid-read, twice. */
static void prompt_stop(void **state)
{
    (void)state;
    struct dpt_loader *loader = NULL;
    dpt_loader_destroy(&loader);
    const int64_t start_ms = dpt_now_ms();
    for (int i = 0; i < 300; i++) {
        loader = create_loader();
        if (i % 3 > 0)
            dpt_loader_start(loader, i, 0, SLOTS, 1);
        if (i % 3 > 1)
            expect_next(loader, i, 0);
        dpt_loader_destroy(&loader);
    }
    assert_true(dpt_now_ms() - start_ms < 20000);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static void no_allocation(void **state)
{
    (void)state;
    skip(); /* the sanitizer's allocator replaces dpt's */
}
#else
/* The program's own malloc: glibc's, counted. In every thread. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
static atomic_int n_allocations;

void *malloc(size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&n_allocations, 1);
    return __libc_realloc(memory, bytes);
}

static void no_allocation(void **state)
{
    (void)state;
    const int at_start = atomic_load(&n_allocations);
    struct dpt_loader *loader = create_loader();
    const int32_t *tokens = NULL, *targets = NULL;
    const int before = atomic_load(&n_allocations);
    assert_true(before > at_start); /* they are counted */
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    for (int i = 0; i < 100 * SLOTS; i++)
        assert_int_equal(next(loader, i / SLOTS, i % SLOTS, &tokens, &targets), DPT_OK);
    dpt_loader_start(loader, 0, 0, 3, 1);
    assert_int_equal(next(loader, 0, 0, &tokens, &targets), DPT_OK);
    assert_int_equal(atomic_load(&n_allocations), before);
    dpt_loader_destroy(&loader);
}
#endif

/* Samples are read by several threads at once, as ranks as threads do. */
static void *reading(void *ctx)
{
    int32_t tokens[SEQ], targets[SEQ];
    const struct dpt_batch one = {.part = {tokens, targets}};
    struct dpt_err why;
    for (int64_t i = 0; i < 500; i++)
        if (dpt_data_read(ctx, i % SAMPLES, i, &one, 0, &why) != DPT_OK)
            return ctx;
    return NULL;
}

static void many_readers(void **state)
{
    (void)state;
    pthread_t threads[4];
    struct dpt_loader *loader = create_loader();
    dpt_loader_start(loader, 0, 0, SLOTS, 1);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, reading, data), 0);
    for (int i = 0; i < 10 * SLOTS; i++)
        expect_next(loader, i / SLOTS, i % SLOTS);
    for (int i = 0; i < 4; i++) {
        void *failed;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    dpt_loader_destroy(&loader);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(order_is_the_samplers),
                                       TEST(order_of_epochs),
                                       TEST(each_sample_once_an_epoch),
                                       TEST(restarts),
                                       TEST(held_batch_is_not_overwritten),
                                       TEST(wrong_order_is_refused),
                                       TEST(reader_errors),
                                       TEST(prompt_stop),
                                       TEST(no_allocation),
                                       TEST(many_readers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
