/* Lines of the run's log: written when they may be, in order, once; completed by the next writer;
 * never lost without a word. */
#include "worker/train/log/pending_lines.h"

#include "base/fs.h"
#include "base/log.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char root[64], dir[128];
static int64_t confirmed_ms; /* lines made until then may be appended */
static struct dpt_err err;

static int setup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "test-pending-lines") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

static bool may_append(void *ctx, int64_t made_ms)
{
    (void)ctx;
    return made_ms <= confirmed_ms;
}

static int n_lost; /* lines that were reported as lost */

static void appended(void *ctx, enum dpt_status status, const struct dpt_err *why)
{
    (void)ctx;
    assert_true(status == DPT_OK || why->text[0]);
    n_lost += status != DPT_OK;
}

static struct dpt_pending *open_book(const char *name)
{
    static char own[160];
    struct dpt_pending *book = NULL;
    (void)snprintf(dir, sizeof dir, "%s/%s", root, name);
    (void)snprintf(own, sizeof own, "%s/node-a", dir);
    assert_int_equal(dpt_fs_mkdirs(dir, &err), DPT_OK);
    confirmed_ms = 0;
    n_lost = 0;
    const struct dpt_pending_options options = {.dir = dir,
                                                .spill_dir = own,
                                                .spill_name = "own.jsonl",
                                                .may_append = may_append,
                                                .appended = appended};
    assert_int_equal(dpt_pending_create(&options, &book, &err), DPT_OK);
    return book;
}

static const struct dpt_run_file_place nothing = {.step = -1};

/* A book of a rank that writes from the first step on, or never. */
static struct dpt_pending *open_begun(const char *name, bool writes)
{
    struct dpt_pending *book = open_book(name);
    dpt_pending_begin(book, writes, 0, &nothing);
    return book;
}

static enum dpt_line_kind kind_of(bool is_evaluation)
{
    return is_evaluation ? DPT_LINE_EVALUATION : DPT_LINE_STEP;
}

/* Made at 10 ms a step. */
static void add_in(struct dpt_pending *book, uint64_t generation, int64_t step, bool is_evaluation)
{
    char text[80];
    (void)snprintf(text, sizeof text, "\n{\"step\": %lld%s, \"generation\": %d}\n", (long long)step,
                   is_evaluation ? ", \"val_loss\": 1" : "", (int)generation);
    const struct dpt_run_file_place place = {step, kind_of(is_evaluation), generation, 0, 0};
    const struct dpt_run_file_line line = {place, text, strlen(text)};
    dpt_pending_add(book, &line, step * 10);
}

static void add_line(struct dpt_pending *book, int64_t step, bool is_evaluation)
{
    add_in(book, 1, step, is_evaluation);
}

static void add_steps(struct dpt_pending *book, uint64_t generation, int64_t first, int64_t last)
{
    for (int64_t step = first; step <= last; step++)
        add_in(book, generation, step, false);
}

/* A generation in which this rank writes begins at the step; the file ends as it does. */
static void begin_writing(struct dpt_pending *book, int64_t step)
{
    struct dpt_run_file_place last;
    assert_int_equal(dpt_run_file_last(dir, &last, &err), DPT_OK);
    dpt_pending_begin(book, true, step, &last);
}

static void add_event(struct dpt_pending *book, int64_t made_ms)
{
    static const char text[] = "\n{\"kind\": \"start\"}\n";
    const struct dpt_run_file_line line = {
        {.step = -1, .kind = DPT_LINE_EVENT}, text, sizeof text - 1};
    dpt_pending_add(book, &line, made_ms);
}

/* The file's steps, evaluations behind a v, with blanks between; static. */
static const char *steps_in(const char *name)
{
    static char said[1 << 18];
    char path[256], row[256];
    size_t n = 0;
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r");
    said[0] = '\0';
    while (f && fgets(row, sizeof row, f)) {
        long long step;
        if (sscanf(row, "{\"step\": %lld", &step) != 1)
            fail_msg("%s: %s", name, row);
        n += (size_t)snprintf(said + n, sizeof said - n, "%s%s%lld", n > 0 ? " " : "",
                              strstr(row, "val_loss") ? "v" : "", step);
        assert_true(n < sizeof said - 32);
    }
    if (f)
        assert_int_equal(fclose(f), 0);
    return said;
}

/* Ends the books; then the run's file and the one of the node's own have these steps. */
static void close_books(struct dpt_pending *a, struct dpt_pending *b, const char *metrics,
                        const char *own)
{
    dpt_pending_destroy(&a);
    dpt_pending_destroy(&b);
    assert_string_equal(steps_in("metrics.jsonl"), metrics);
    assert_string_equal(steps_in("node-a/own.jsonl"), own);
}

static void lines_wait_for_the_word(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("wait", true);
    confirmed_ms = 20;
    add_steps(book, 1, 1, 4);
    assert_false(dpt_pending_flush(book));
    assert_string_equal(steps_in("metrics.jsonl"), "1 2");
    assert_false(dpt_pending_flush(book)); /* once */
    assert_string_equal(steps_in("metrics.jsonl"), "1 2");
    confirmed_ms = 40;
    assert_true(dpt_pending_flush(book));
    assert_string_equal(steps_in("metrics.jsonl"), "1 2 3 4");
    dpt_pending_destroy(&book);
    assert_string_equal(steps_in("node-a/own.jsonl"), "");
}

/* The rank ends without that confirmation: the lines are in its spill file. */
static void unconfirmed_lines_go_to_the_own_file(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("spill", true);
    confirmed_ms = 10;
    add_line(book, 1, false);
    add_line(book, 2, false);
    add_line(book, 2, true);
    close_books(book, NULL, "1", "2 v2");
}

static void only_a_writer_writes(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("reader", false);
    confirmed_ms = INT64_MAX;
    add_line(book, 1, false);
    add_event(book, 1);
    assert_true(dpt_pending_flush(book));
    close_books(book, NULL, "", "");
}

/* The writer has died with the lines that waited in its memory, and so has the server: a rank that
 * saves its state keeps those that the file lacks. */
static void a_rescue_keeps_the_lines_of_a_dead_writer(void **state)
{
    (void)state;
    struct dpt_pending *writer = open_begun("dead-writer", true),
                       *other = open_begun("dead-writer", false);
    confirmed_ms = 20;
    for (int step = 1; step <= 4; step++) {
        add_line(writer, step, false);
        add_line(other, step, false);
        (void)dpt_pending_flush(writer);
    }
    add_line(other, 4, true);
    dpt_pending_end(other);
    dpt_pending_keep_unwritten(other);
    close_books(other, NULL, "1 2", "3 4 v4");
    confirmed_ms = 40;
    dpt_pending_destroy(&writer);
}

/* The file has all lines: the writer on another node has appended them. */
static void a_rescue_keeps_nothing_that_is_written(void **state)
{
    (void)state;
    struct dpt_pending *writer = open_begun("live-writer", true),
                       *other = open_begun("live-writer", false);
    confirmed_ms = INT64_MAX;
    for (int step = 1; step <= 3; step++) {
        add_line(writer, step, false);
        add_line(other, step, false);
    }
    assert_true(dpt_pending_flush(writer));
    confirmed_ms = 0;
    dpt_pending_end(other);
    dpt_pending_keep_unwritten(other);
    close_books(other, writer, "1 2 3", "");
}

/* It keeps its own lines once: neither those that it has appended, though another world has written
 * since, nor those that it has spilled. */
static void a_rescue_of_the_writer(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("own-rescue", true), *other = open_book("own-rescue");
    confirmed_ms = 20;
    add_steps(book, 2, 1, 4);
    assert_false(dpt_pending_flush(book));
    dpt_pending_end(book);
    confirmed_ms = INT64_MAX;
    begin_writing(other, 2);
    add_line(other, 3, false);
    assert_true(dpt_pending_flush(other));
    confirmed_ms = 20;
    dpt_pending_keep_unwritten(book);
    close_books(book, other, "1 2 3", "3 4");
}

static bool has_line(const struct dpt_pending *book, int64_t step, bool is_evaluation)
{
    const struct dpt_run_file_place place = {.step = step, .kind = kind_of(is_evaluation)};
    return dpt_pending_has(book, &place);
}

/* The next writer appends the lines that the last one did not, of the history that counts. */
static void a_successor_completes_the_file(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("successor", false);
    confirmed_ms = INT64_MAX;
    for (int step = 1; step <= 6; step++) {
        add_line(book, step, false);
        if (step % 2 == 0)
            add_line(book, step, true);
    }
    assert_true(has_line(book, 6, false) && has_line(book, 6, true));
    assert_false(has_line(book, 5, true));
    /* It had written up to step 2, not its evaluation; the world goes back to step 5. */
    dpt_pending_begin(book, true, 5,
                      &(struct dpt_run_file_place){.step = 2, .generation = 1, .file_bytes = 1});
    assert_false(has_line(book, 6, false));
    assert_true(dpt_pending_flush(book));
    assert_string_equal(steps_in("metrics.jsonl"), "v2 3 4 v4 5");
    add_line(book, 6, false);
    assert_true(dpt_pending_flush(book));
    assert_string_equal(steps_in("metrics.jsonl"), "v2 3 4 v4 5 6");
    dpt_pending_begin(book, true, 6,
                      &(struct dpt_run_file_place){
                          .step = 6, .generation = 1, .file_bytes = 1}); /* nothing is missing */
    assert_true(dpt_pending_flush(book));
    assert_string_equal(steps_in("metrics.jsonl"), "v2 3 4 v4 5 6");
    /* Another rank writes: it appends the lines that still wait here. */
    confirmed_ms = 0;
    add_line(book, 7, false);
    dpt_pending_begin(book, false, 7, &nothing);
    dpt_pending_destroy(&book);
    assert_string_equal(steps_in("node-a/own.jsonl"), "");
}

/* The line of the last step before the writer leaves waits for the server's word: its successor
 * appends it, and the writer, which hears that word later, does not. */
static void a_writer_that_leaves(void **state)
{
    (void)state;
    struct dpt_pending *old = open_begun("leaves", true), *next = open_begun("leaves", false);
    confirmed_ms = 20;
    for (int step = 1; step <= 3; step++) {
        add_line(old, step, false);
        add_line(next, step, false);
        (void)dpt_pending_flush(old);
    }
    add_event(old, 30);
    dpt_pending_end(old);
    assert_string_equal(steps_in("metrics.jsonl"), "1 2");
    begin_writing(next, 3);
    confirmed_ms = 60;
    assert_false(dpt_pending_flush(old)); /* the event waits: no other rank has it */
    assert_int_equal(n_lost, 0);
    add_steps(next, 2, 4, 6);
    assert_true(dpt_pending_flush(next));
    close_books(old, next, "1 2 3 4 5 6", "");
}

/* A new server confirms a world that the server before had expelled: another world has written
 * meanwhile, and the lines that waited here are not appended. */
static void another_world_has_written(void **state)
{
    (void)state;
    struct dpt_pending *old = open_begun("worlds", true), *other = open_book("worlds");
    confirmed_ms = 10;
    add_steps(old, 1, 1, 5);
    assert_false(dpt_pending_flush(old));
    begin_writing(other, 1);
    confirmed_ms = INT64_MAX;
    add_in(other, 3, 2, false);
    assert_true(dpt_pending_flush(other));
    assert_true(dpt_pending_flush(old));
    add_in(other, 3, 3, false);
    assert_true(dpt_pending_flush(other));
    close_books(old, other, "1 2 3", "2 3 4 5");
}

/* No successor: its lines are in the own file. */
static void a_writer_that_leaves_alone(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("alone", true);
    confirmed_ms = 10;
    add_line(book, 1, false);
    add_line(book, 2, false);
    dpt_pending_end(book);
    confirmed_ms = 60;
    close_books(book, NULL, "1", "2");
}

/* The file ends with steps that were given up: those made again are not in it. */
static void steps_that_were_made_again(void **state)
{
    (void)state;
    struct dpt_pending *book = open_book("again");
    confirmed_ms = INT64_MAX;
    begin_writing(book, 0);
    add_steps(book, 1, 1, 10);
    assert_true(dpt_pending_flush(book));
    dpt_pending_begin(book, false, 5, &nothing); /* another writes, and cannot */
    add_steps(book, 2, 6, 9);
    begin_writing(book, 9);
    add_in(book, 3, 10, false);
    assert_true(dpt_pending_flush(book));
    begin_writing(book, 10);
    assert_true(dpt_pending_flush(book));
    dpt_pending_destroy(&book);
    assert_string_equal(steps_in("metrics.jsonl"), "1 2 3 4 5 6 7 8 9 10 6 7 8 9 10");
}

/* A world that was cut off had got further than the one that replaced it, and its state counts when
 * they meet. */
static void an_older_world_that_got_further(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("further", true), *other = open_book("further");
    add_steps(book, 1, 1, 5);
    dpt_pending_end(book);
    confirmed_ms = INT64_MAX;
    begin_writing(other, 0);
    add_steps(other, 4, 1, 3);
    assert_true(dpt_pending_flush(other));
    begin_writing(book, 5);
    assert_true(dpt_pending_flush(book));
    dpt_pending_destroy(&other);
    dpt_pending_destroy(&book);
    assert_string_equal(steps_in("metrics.jsonl"), "1 2 3 4 5");
}

/* The oldest make room in an outage that is longer than the memory: no line is lost. */
static void an_outage_longer_than_the_memory(void **state)
{
    (void)state;
    enum { STEPS = DPT_PENDING_LINES_MAX * 2 };
    static char expected[1 << 18];
    size_t n = 0;
    struct dpt_pending *book = open_begun("long", true);
    add_steps(book, 1, 1, STEPS);
    confirmed_ms = INT64_MAX;
    assert_true(dpt_pending_flush(book));
    char *own = strdup(steps_in("node-a/own.jsonl"));
    assert_non_null(own);
    assert_true(strlen(own) > 0);
    for (int step = 1; step <= STEPS; step++)
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%d", n > 0 ? " " : "", step);
    assert_int_equal(strncmp(expected, own, strlen(own)), 0); /* the first of all … */
    assert_string_equal(expected + strlen(own) + 1, steps_in("metrics.jsonl")); /* … the others */
    free(own);
    dpt_pending_destroy(&book);
}

/* One long line asks for more room than many short ones make. */
static void a_long_line_after_short_ones(void **state)
{
    (void)state;
    enum { BYTES = DPT_PENDING_BYTES / 4 };
    static char text[BYTES];
    struct dpt_pending *book = open_begun("long-line", true);
    memset(text, ' ', sizeof text);
    memcpy(text, "\n{\"step\": 1}", 12);
    text[sizeof text - 1] = '\n';
    const struct dpt_run_file_line line = {{.step = 1, .generation = 1}, text, sizeof text};
    add_steps(book, 1, 1, 6000); /* some 190 KiB in 6000 lines: their quarter is little */
    for (int i = 0; i < 8; i++)
        dpt_pending_add(book, &line, 6001 * 10);
    confirmed_ms = INT64_MAX;
    assert_true(dpt_pending_flush(book));
    assert_true(has_line(book, 1, false));
    dpt_pending_destroy(&book);
}

/* A new server and new processes count generations from 1, in a file of an earlier start, which had
 * got further: a writer that dies before its first line costs none. */
static void a_start_after_higher_generations(void **state)
{
    (void)state;
    struct dpt_run_file_place last;
    for (int first_writes = 0; first_writes < 2; first_writes++) {
        const char *name = first_writes ? "restart-2" : "restart-1";
        struct dpt_pending *earlier = open_book(name), *a = open_book(name), *b = open_book(name);
        confirmed_ms = INT64_MAX;
        dpt_pending_begin(earlier, true, 0, &nothing);
        add_steps(earlier, 5, 1, 6);
        dpt_pending_destroy(&earlier);
        assert_int_equal(dpt_run_file_last(dir, &last, &err), DPT_OK);
        dpt_pending_begin(a, true, 2, &last);
        dpt_pending_begin(b, false, 2, &last);
        for (int step = 3; step <= 4; step++) {
            confirmed_ms = step == 3 && first_writes ? INT64_MAX : 0;
            add_in(a, 1, step, false);
            add_in(b, 1, step, false);
            (void)dpt_pending_flush(a);
        }
        confirmed_ms = INT64_MAX;
        begin_writing(b, 4);
        add_in(b, 2, 5, false);
        assert_true(dpt_pending_flush(b));
        assert_string_equal(steps_in("metrics.jsonl"), "1 2 3 4 5 6 3 4 5");
        confirmed_ms = 0;
        dpt_pending_destroy(&a);
        dpt_pending_destroy(&b);
    }
}

/* A log that cannot be written ends nothing. */
static void a_disk_that_fails(void **state)
{
    (void)state;
    struct dpt_pending *book = open_begun("failing", true);
    confirmed_ms = INT64_MAX;
    assert_int_equal(dpt_fs_remove_tree(dir, &err), DPT_OK);
    assert_int_equal(dpt_fs_write_file_atomic(dir, "x", 1, &err), DPT_OK);
    add_line(book, 1, false);
    assert_true(dpt_pending_flush(book));
    assert_int_equal(n_lost, 1);
    confirmed_ms = 0;
    add_line(book, 2, false);
    dpt_pending_destroy(&book);
    assert_int_equal(n_lost, 2);
}

int main(void)
{
    dpt_log_set_level(DPT_LOG_ERROR);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_wait_for_the_word),
        cmocka_unit_test(unconfirmed_lines_go_to_the_own_file),
        cmocka_unit_test(only_a_writer_writes),
        cmocka_unit_test(a_rescue_keeps_the_lines_of_a_dead_writer),
        cmocka_unit_test(a_rescue_keeps_nothing_that_is_written),
        cmocka_unit_test(a_rescue_of_the_writer),
        cmocka_unit_test(a_successor_completes_the_file),
        cmocka_unit_test(a_writer_that_leaves),
        cmocka_unit_test(another_world_has_written),
        cmocka_unit_test(a_writer_that_leaves_alone),
        cmocka_unit_test(steps_that_were_made_again),
        cmocka_unit_test(an_older_world_that_got_further),
        cmocka_unit_test(an_outage_longer_than_the_memory),
        cmocka_unit_test(a_long_line_after_short_ones),
        cmocka_unit_test(a_start_after_higher_generations),
        cmocka_unit_test(a_disk_that_fails),
    };
    return cmocka_run_group_tests_name("pending-lines", tests, setup, teardown);
}
