/* Reader and writer: round trip, byte order, and every way of running over the end. */
#include "base/cursor.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

static struct dpt_err err;

/* One of everything, 1+2+4+8+3 = 18 bytes. */
static void write_all(struct dpt_writer *w)
{
    dpt_writer_u8(w, 0x01);
    dpt_writer_u16(w, 0x0302);
    dpt_writer_u32(w, 0x07060504);
    dpt_writer_u64(w, 0x0f0e0d0c0b0a0908);
    dpt_writer_bytes(w, "\x10\x11\x12", 3);
}

static void round_trip(void **state)
{
    (void)state;
    uint8_t data[18];
    struct dpt_writer w;
    dpt_writer_init(&w, data, sizeof data);
    write_all(&w);
    assert_int_equal(dpt_writer_end(&w, "sample", &err), DPT_OK);
    assert_int_equal(w.at, 18);
    for (int i = 0; i < 18; i++)
        assert_int_equal(data[i], i + 1); /* little-endian, no padding */

    struct dpt_reader r;
    char three[3];
    dpt_reader_init(&r, data, sizeof data);
    assert_int_equal(dpt_reader_uint(&r, 1), 0x01);
    assert_int_equal(dpt_reader_u16(&r), 0x0302);
    assert_int_equal(dpt_reader_u32(&r), 0x07060504);
    assert_true(dpt_reader_u64(&r) == 0x0f0e0d0c0b0a0908);
    assert_int_equal(dpt_reader_left(&r), 3);
    assert_int_equal(dpt_reader_status(&r, "sample", &err), DPT_OK);
    assert_int_equal(dpt_reader_end(&r, "sample", &err), DPT_EPROTO); /* bytes left */
    assert_string_equal(err.text, "sample has 3 bytes too many after byte 15");
    dpt_reader_bytes(&r, three, 3);
    assert_memory_equal(three, "\x10\x11\x12", 3);
    assert_int_equal(dpt_reader_end(&r, "sample", &err), DPT_OK);
}

static void every_truncation_fails(void **state)
{
    (void)state;
    uint8_t data[18];
    struct dpt_writer w;
    dpt_writer_init(&w, data, sizeof data);
    write_all(&w);
    for (size_t n = 0; n < 18; n++) {
        struct dpt_reader r;
        char three[3];
        dpt_reader_init(&r, data, n);
        (void)dpt_reader_uint(&r, 1);
        (void)dpt_reader_u16(&r);
        (void)dpt_reader_u32(&r);
        (void)dpt_reader_u64(&r);
        dpt_reader_bytes(&r, three, 3);
        assert_memory_equal(three, "\0\0\0", 3);
        assert_int_equal(dpt_reader_end(&r, "sample", &err), DPT_EPROTO);

        uint8_t small[18];
        memset(small, 0xee, sizeof small);
        dpt_writer_init(&w, small, n);
        write_all(&w);
        assert_int_equal(dpt_writer_end(&w, "sample", &err), DPT_EPROTO);
        for (size_t i = n; i < sizeof small; i++)
            assert_int_equal(small[i], 0xee);
    }
}

static void failure_sticks(void **state)
{
    (void)state;
    struct dpt_reader r;
    char two[2] = "xy";
    dpt_reader_init(&r, "abc", 3);
    assert_int_equal(dpt_reader_u32(&r), 0);
    assert_int_equal(dpt_reader_uint(&r, 1), 0); /* would fit */
    dpt_reader_bytes(&r, two, 2);
    assert_memory_equal(two, "\0\0", 2);
    assert_null(dpt_reader_view(&r, 0));
    assert_int_equal(dpt_reader_left(&r), 0);
    assert_int_equal(dpt_reader_status(&r, "header", &err), DPT_EPROTO);
    assert_string_equal(err.text, "header of 3 bytes is malformed near byte 0");

    dpt_reader_init(&r, "abc", 3);
    (void)dpt_reader_uint(&r, 1);
    dpt_reader_reject(&r);
    assert_int_equal(dpt_reader_status(&r, "header", &err), DPT_EPROTO);

    uint8_t data[3];
    struct dpt_writer w;
    dpt_writer_init(&w, data, sizeof data);
    dpt_writer_u32(&w, 1);
    dpt_writer_u8(&w, 1);
    assert_int_equal(w.at, 0);
    assert_int_equal(dpt_writer_end(&w, "header", &err), DPT_EPROTO);
    assert_string_equal(err.text, "header does not fit in 3 bytes");
}

static void huge_lengths_do_not_wrap(void **state)
{
    (void)state;
    struct dpt_reader r;
    dpt_reader_init(&r, "abc", 3);
    (void)dpt_reader_uint(&r, 1);
    assert_null(dpt_reader_view(&r, SIZE_MAX));
    uint8_t data[3];
    struct dpt_writer w;
    dpt_writer_init(&w, data, sizeof data);
    dpt_writer_u8(&w, 1);
    dpt_writer_bytes(&w, data, SIZE_MAX);
    assert_true(w.failed);
}

static void nothing_at_all(void **state)
{
    (void)state;
    struct dpt_reader r;
    dpt_reader_init(&r, NULL, 0);
    assert_non_null(dpt_reader_view(&r, 0));
    assert_int_equal(dpt_reader_end(&r, "nothing", &err), DPT_OK);
    (void)dpt_reader_uint(&r, 1);
    assert_int_equal(dpt_reader_end(&r, "nothing", &err), DPT_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip), cmocka_unit_test(every_truncation_fails),
        cmocka_unit_test(failure_sticks), cmocka_unit_test(huge_lengths_do_not_wrap),
        cmocka_unit_test(nothing_at_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
