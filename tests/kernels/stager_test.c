/* Copies through a ring of page-locked places: every byte comes to its place for any order of
 * copies in both directions, the caller may reuse a source at once, and a device that breaks gives
 * an error. On a device that reads its page-locked memory when its queue runs, so that a place that
 * is filled too early shows, and on the CPU device. */
#include "kernels/stager.h"

#include "base/rng.h"
#include "kernels/ops.h"
#include "tests/kernels/discrete.h"
#include "tests/kernels/harness.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 64 << 20, BYTES = 1 << 16, PLACE = 1024, COPIES = 400, SEED = 20 };

struct scene {
    struct dpt_device *device, *host;
    struct dpt_stream *stream, *host_stream;
    struct dpt_stager *stager;
    unsigned char *there; /* BYTES of the device */
};

static struct scene open_scene(bool discrete, size_t bytes_max)
{
    struct scene s = {.stager = NULL};
    struct dpt_err err;
    void *there;
    assert_int_equal(discrete ? dpt_device_discrete_create(ROOM, &s.device, &err)
                              : dpt_device_cpu_create(&s.device, &err),
                     DPT_OK);
    assert_int_equal(dpt_device_cpu_create(&s.host, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(s.device, 1, &s.stream, &err), DPT_OK);
    assert_int_equal(dpt_stream_create(s.host, 2, &s.host_stream, &err), DPT_OK);
    const struct dpt_stager_options options = {.device = s.device,
                                               .stream = s.stream,
                                               .host_stream = s.host_stream,
                                               .bytes_max = bytes_max};
    assert_int_equal(dpt_stager_create(&options, &s.stager, &err), DPT_OK);
    assert_int_equal(dpt_device_alloc(s.device, BYTES, &there, &err), DPT_OK);
    s.there = there;
    return s;
}

static void close_scene(struct scene *s)
{
    dpt_stager_destroy(&s->stager);
    assert_null(s->stager);
    dpt_stager_destroy(&s->stager);
    dpt_device_free(s->device, s->there, BYTES);
    dpt_stream_destroy(&s->stream);
    dpt_stream_destroy(&s->host_stream);
    dpt_device_destroy(&s->device);
    dpt_device_destroy(&s->host);
}

static uint32_t below(uint64_t *drawn, uint32_t n)
{
    uint32_t block[4];
    dpt_philox(dpt_rng_key(SEED, DPT_RNG_TEST, 0, 0, 0), (*drawn)++, block);
    return block[0] % n;
}

static void every_byte_comes_to_its_place(void **state)
{
    (void)state;
    static unsigned char expected[BYTES], source[BYTES], back[BYTES], wanted[BYTES];
    for (int discrete = 0; discrete < 2; discrete++) {
        struct scene s = open_scene(discrete != 0, PLACE);
        uint64_t drawn = 0;
        struct dpt_err err;
        memset(expected, 0, sizeof expected);
        memset(back, 0, sizeof back);
        memset(wanted, 0, sizeof wanted);
        (void)dpt_device_discrete_pageable();
        for (int i = 0; i < COPIES; i++) {
            /* From nothing to more than all places hold. */
            const size_t n = below(&drawn, 2) ? below(&drawn, 6 * PLACE) : below(&drawn, 100);
            const size_t at = below(&drawn, (uint32_t)(BYTES - n)), from = BYTES - n - at;
            if (below(&drawn, 2)) {
                for (size_t b = 0; b < n; b++)
                    expected[at + b] = source[b] = (unsigned char)below(&drawn, 256);
                dpt_stager_to_device(s.stager, n, source, s.there + at);
                memset(source, 0xee, n);
            } else {
                memcpy(wanted + at, expected + from, n);
                dpt_stager_to_host(s.stager, n, s.there + from, back + at);
            }
        }
        assert_int_equal(dpt_stager_finish(s.stager, &err), DPT_OK);
        assert_memory_equal(back, wanted, BYTES);
        dpt_stager_to_host(s.stager, BYTES, s.there, back);
        assert_int_equal(dpt_stager_finish(s.stager, &err), DPT_OK);
        assert_memory_equal(back, expected, BYTES);
        assert_int_equal(dpt_stager_finish(s.stager, &err), DPT_OK); /* nothing to wait for */
        assert_int_equal(dpt_device_discrete_pageable(), 0);
        dpt_stager_to_device(s.stager, PLACE, source, s.there); /* destroyed with that under way */
        close_scene(&s);
    }
}

static void places_are_no_larger_than_needed(void **state)
{
    (void)state;
    assert_int_equal(dpt_stager_bytes(1), DPT_STAGER_PLACES * 64);
    assert_int_equal(dpt_stager_bytes(PLACE), DPT_STAGER_PLACES * PLACE);
    assert_int_equal(dpt_stager_bytes((size_t)1 << 40),
                     (size_t)DPT_STAGER_PLACES * DPT_STAGER_PLACE_BYTES_MAX);
}

static void broken_device_is_an_error(void **state)
{
    (void)state;
    static unsigned char source[BYTES], back[BYTES];
    struct scene s = open_scene(true, PLACE);
    struct dpt_err err;
    dpt_device_discrete_fail(s.device, 7);
    dpt_stager_to_device(s.stager, BYTES, source, s.there);
    dpt_stager_to_host(s.stager, BYTES, s.there, back);
    assert_int_equal(dpt_stager_finish(s.stager, &err), DPT_EDEVICE);
    assert_non_null(strstr(err.text, "told to break"));
    close_scene(&s);
}

/* A place that is filled before the device has read it: the test above relies on this. */
static void page_locked_memory_is_read_when_the_queue_runs(void **state)
{
    (void)state;
    struct scene s = open_scene(true, PLACE);
    struct dpt_err err;
    void *locked;
    unsigned char pageable[4] = {1, 1, 1, 1}, back[8];
    const struct dpt_ops *ops = dpt_device_ops(s.device);
    assert_int_equal(dpt_device_alloc_host(s.device, 4, &locked, &err), DPT_OK);
    memset(locked, 1, 4);
    (void)dpt_device_discrete_pageable();
    ops->copy(s.stream, 4, locked, s.there);
    assert_int_equal(dpt_device_discrete_pageable(), 0);
    ops->copy(s.stream, 4, pageable, s.there + 4);
    assert_int_equal(dpt_device_discrete_pageable(), 4);
    memset(locked, 2, 4);
    memset(pageable, 2, 4);
    ops->copy(s.stream, 8, s.there, back);
    assert_int_equal(dpt_device_discrete_pageable(), 8);
    assert_int_equal(dpt_stream_sync(s.stream, &err), DPT_OK);
    assert_memory_equal(back, ((unsigned char[]){2, 2, 2, 2, 1, 1, 1, 1}), 8);
    dpt_device_free_host(s.device, locked, 4);
    close_scene(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_comes_to_its_place),
        cmocka_unit_test(places_are_no_larger_than_needed),
        cmocka_unit_test(broken_device_is_an_error),
        cmocka_unit_test(page_locked_memory_is_read_when_the_queue_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
