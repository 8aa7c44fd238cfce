/* Pickles byte by byte, as Python's pickletools describes the opcodes; and a snapshot without a
 * description of its allocations. tests/worker/trace/test_memory_snapshot.py reads whole ones with
 * Python. */
#include "worker/trace/memory_snapshot.h"
#include "worker/trace/pickle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static void expect_bytes(FILE *out, const char *text, const char *wanted, size_t bytes)
{
    const long at = ftell(out);
    assert_int_equal(fflush(out), 0);
    if ((size_t)at != bytes || memcmp(text, wanted, bytes) != 0)
        fail_msg("%ld bytes, expected %zu", at, bytes);
    rewind(out);
}

#define EXPECT(out, text, wanted) expect_bytes(out, text, wanted, sizeof wanted - 1)

static void integers_have_the_shortest_form(void **state)
{
    (void)state;
    char text[64] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_non_null(out);
    dpt_pickle_int(out, 0);
    EXPECT(out, text, "K\x00");
    dpt_pickle_int(out, 255);
    EXPECT(out, text, "K\xff");
    dpt_pickle_int(out, 256);
    EXPECT(out, text, "M\x00\x01");
    dpt_pickle_int(out, 65535);
    EXPECT(out, text, "M\xff\xff");
    dpt_pickle_int(out, 65536);
    EXPECT(out, text, "J\x00\x00\x01\x00");
    dpt_pickle_int(out, -1);
    EXPECT(out, text, "J\xff\xff\xff\xff");
    dpt_pickle_int(out, INT64_C(2147483648));
    EXPECT(out, text, "\x8a\x08\x00\x00\x00\x80\x00\x00\x00\x00");
    dpt_pickle_int(out, INT64_MIN);
    EXPECT(out, text, "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80");
    assert_int_equal(fclose(out), 0);
}

static void values_nest(void **state)
{
    (void)state;
    char text[64] = "";
    FILE *out = fmemopen(text, sizeof text, "w");
    assert_non_null(out);
    dpt_pickle_begin(out);
    dpt_pickle_dict(out);
    dpt_pickle_text(out, "l");
    dpt_pickle_list(out);
    dpt_pickle_int(out, 1);
    dpt_pickle_int(out, 2);
    dpt_pickle_pair(out);
    dpt_pickle_append(out);
    dpt_pickle_bool(out, true);
    dpt_pickle_append(out);
    dpt_pickle_set(out);
    dpt_pickle_set_text(out, "é", "");
    dpt_pickle_end(out);
    EXPECT(out, text,
           "\x80\x02}X\x01\x00\x00\x00l]K\x01K\x02\x86"
           "a\x88"
           "asX\x02\x00\x00\x00\xc3\xa9X\x00\x00\x00\x00s.");
    assert_int_equal(fclose(out), 0);
}

/* The number of times that the text is in the bytes. */
static int count_text(const char *bytes, size_t n, const char *text)
{
    int found = 0;
    for (const char *at = bytes; (at = memmem(at, n - (size_t)(at - bytes), text, strlen(text)));
         at++)
        found++;
    return found;
}

static void snapshot_names_an_unknown_allocation_by_its_tag(void **state)
{
    (void)state;
    struct dpt_account account = {.log = NULL};
    struct dpt_memory_history history;
    struct dpt_err err;
    char *text = NULL;
    size_t bytes = 0;
    assert_int_equal(dpt_memory_log_create(8, 8, &account.log, &err), DPT_OK);
    dpt_account_add(&account, DPT_MEMORY_SCRATCH, &history, 100, 4096);
    dpt_account_add(&account, DPT_MEMORY_DATA, NULL, 8, 8);
    dpt_account_sub(&account, DPT_MEMORY_DATA, NULL, 8, 8);
    assert_int_equal(dpt_memory_log_read(account.log, &history, &err), DPT_OK);
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    const struct dpt_snapshot snapshot = {.history = &history, .n_devices = 1};
    assert_int_equal(dpt_snapshot_print(&snapshot, out, &err), DPT_OK);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(count_text(text, bytes, "active_allocated"), 1);
    assert_int_equal(count_text(text, bytes, "scratch"),
                     8); /* 2 a frame: segment, block, 2 events */
    assert_int_equal(count_text(text, bytes, "segment_alloc"), 2);
    assert_int_equal(count_text(text, bytes, "segment_free"), 1);
    assert_int_equal(count_text(text, bytes, "free_completed"), 1);
    free(text);
    dpt_memory_history_fini(&history);
    dpt_memory_log_destroy(&account.log);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_have_the_shortest_form),
        cmocka_unit_test(values_nest),
        cmocka_unit_test(snapshot_names_an_unknown_allocation_by_its_tag),
    };
    return cmocka_run_group_tests_name("pickles", tests, NULL, NULL);
}
