/* TensorBoard event files: known bytes, and what a reader has after kills, rollbacks and full
 * disks. */
#include "worker/train/log/event_file.h"

#include "base/fs.h"
#include "base/hash.h"
#include "tests/tmp.h"
#include "tests/worker/train/event_view.h"
#include "worker/train/log/event_record.h"
#include "worker/train/log/pending_lines.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char root[64], dir[128];
static struct dpt_err err;
static int n_lost;
static char lost_text[DPT_ERR_TEXT_BYTES]; /* the newest reason */

static int setup(void **state)
{
    (void)state;
    return test_make_dir(root, sizeof root, "test-events") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(root, &err) == DPT_OK ? 0 : -1;
}

/* ---- a writer ---- */

static bool may_append(void *ctx, int64_t made_ms)
{
    (void)ctx;
    (void)made_ms;
    return true;
}

static void appended(void *ctx, enum dpt_status status, const struct dpt_err *why)
{
    (void)ctx;
    n_lost += status != DPT_OK;
    if (status != DPT_OK)
        (void)snprintf(lost_text, sizeof lost_text, "%s", why->text);
}

static void make_log_dir(const char *name)
{
    (void)snprintf(dir, sizeof dir, "%s/%s", root, name);
    assert_int_equal(dpt_fs_mkdirs(dir, &err), DPT_OK);
    n_lost = 0;
}

/* A process that begins to write at the step. */
static struct dpt_pending *open_writer(int64_t step, bool tensorboard)
{
    struct dpt_pending *book = NULL;
    struct dpt_run_file_place last;
    const struct dpt_pending_options options = {.dir = dir,
                                                .tensorboard = tensorboard,
                                                .spill_dir = dir,
                                                .spill_name = "spill.jsonl",
                                                .may_append = may_append,
                                                .appended = appended};
    assert_int_equal(dpt_pending_create(&options, &book, &err), DPT_OK);
    assert_int_equal(dpt_run_file_last(dir, &last, &err), DPT_OK);
    dpt_pending_begin(book, true, step, &last);
    return book;
}

static void begin_again(struct dpt_pending *book, bool writes, int64_t step)
{
    struct dpt_run_file_place last;
    assert_int_equal(dpt_run_file_last(dir, &last, &err), DPT_OK);
    dpt_pending_end(book);
    dpt_pending_begin(book, writes, step, &last);
}

static void hold_line(void *book, const struct dpt_run_file_line *line)
{
    dpt_pending_add(book, line, 0);
    (void)dpt_pending_flush(book);
}

/* The loss of a step is step + generation / 8. Without a book the line goes to metrics.jsonl only,
 * as if its writer was killed then. */
static void add_step(struct dpt_pending *book, uint64_t generation, int64_t step)
{
    const struct dpt_run_files log = {dir, "a-run", generation, 2, book ? hold_line : NULL, book};
    const struct dpt_metrics m = {.step = step,
                                  .loss = (double)step + (double)generation / 8,
                                  .lr = 0.5,
                                  .step_ms = 2,
                                  .memory_bytes = 4096};
    assert_int_equal(dpt_run_file_metrics(&log, &m, &err), DPT_OK);
}

static void add_steps(struct dpt_pending *book, uint64_t generation, int64_t first, int64_t last)
{
    for (int64_t step = first; step <= last; step++)
        add_step(book, generation, step);
}

static void add_evaluation(struct dpt_pending *book, int64_t step)
{
    const struct dpt_run_files log = {dir, "a-run", 1, 2, book ? hold_line : NULL, book};
    const struct dpt_eval_record e = {.step = step, .val_loss = 0.25, .tokens = 64, .ms = 1};
    assert_int_equal(dpt_run_file_eval(&log, &e, &err), DPT_OK);
}

/* ---- tests ---- */

/* RFC 3720 B.4, and the first 12 bytes of every event file of TensorFlow's writers: the length 24
 * and its masked CRC. */
static void known_checksums(void **state)
{
    (void)state;
    uint8_t bytes[32] = {0};
    assert_int_equal(dpt_crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(dpt_crc32c(0, bytes, 32), 0x62a8ab43);
    assert_int_equal(dpt_crc32c(0, "123456789", 9), 0xe3069283);
    static const uint8_t head[] = {0x18, 0, 0, 0, 0, 0, 0, 0, 0xa3, 0x7f, 0x4b, 0x22, 0x09};
    static const uint8_t version[] = {0x1a, 13,  'b', 'r', 'a', 'i', 'n', '.',
                                      'E',  'v', 'e', 'n', 't', ':', '2'};
    struct dpt_event_records records;
    records.bytes = 0;
    dpt_event_add_version(&records, 1.7e9);
    assert_int_equal(records.bytes, 40);
    assert_memory_equal(records.data, head, sizeof head);
    assert_memory_equal(records.data + 21, version, sizeof version);
}

static void each_step_has_one_record(void **state)
{
    (void)state;
    make_log_dir("plain");
    struct dpt_pending *book = open_writer(0, true);
    add_steps(book, 1, 1, 3);
    add_evaluation(book, 3);
    add_step(book, 1, 4);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125 3:3.125 4:4.125");
    assert_string_equal(event_view_points(dir, "eval/loss"), "3:0.25");
    assert_string_equal(event_view_points(dir, "cluster/world_size"), "1:2 2:2 3:2 4:2");
    /* Zeros are written. */
    assert_string_equal(event_view_points(dir, "train/grad_norm"), "1:0 2:0 3:0 4:0");
    assert_string_equal(event_view_points(dir, "memory/allocated_bytes"),
                        "1:4096 2:4096 3:4096 4:4096");
    assert_string_equal(event_view_points(dir, "train/loss_scale"), "");
    assert_true(event_view.n_files == 1 && n_lost == 0);
}

static void values_that_are_not_finite(void **state)
{
    (void)state;
    make_log_dir("not-finite");
    struct dpt_pending *book = open_writer(0, true);
    const struct dpt_run_files log = {dir, "a-run", 1, 2, hold_line, book};
    const struct dpt_metrics m = {.step = 1,
                                  .loss = (double)NAN,
                                  .lr = (double)-INFINITY,
                                  .grad_norm = (double)INFINITY,
                                  .is_scaled = true,
                                  .scale = 65536};
    assert_int_equal(dpt_run_file_metrics(&log, &m, &err), DPT_OK);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:nan");
    assert_string_equal(event_view_points(dir, "train/learning_rate"), "1:-inf");
    assert_string_equal(event_view_points(dir, "train/grad_norm"), "1:inf");
    assert_string_equal(event_view_points(dir, "train/loss_scale"), "1:65536");
    assert_string_equal(event_view_points(dir, "train/skipped_steps"), "1:0");
}

/* A writer was killed after it had appended a line to metrics.jsonl. */
static void next_writer_adds_the_line_of_a_killed_writer(void **state)
{
    (void)state;
    make_log_dir("killed");
    struct dpt_pending *book = open_writer(0, true);
    add_steps(book, 1, 1, 40);
    dpt_pending_destroy(&book);
    add_step(NULL, 1, 41);
    book = open_writer(41, true);
    add_steps(book, 2, 42, 43);
    dpt_pending_destroy(&book);
    char expected[1024];
    size_t n = 0;
    for (int i = 1; i <= 43; i++)
        n += (size_t)snprintf(expected + n, sizeof expected - n, "%s%d:%g", i > 1 ? " " : "", i,
                              i + (i > 41 ? 0.25 : 0.125));
    assert_string_equal(event_view_points(dir, "train/loss"), expected);
    assert_int_equal(event_view.n_files, 2);
}

static void steps_computed_again_count_once(void **state)
{
    (void)state;
    make_log_dir("rollback");
    struct dpt_pending *book = open_writer(0, true);
    add_steps(book, 1, 1, 5);
    begin_again(book, true, 2); /* the same process goes back */
    add_steps(book, 2, 3, 4);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125 3:3.25 4:4.25");
    assert_int_equal(event_view.n_files, 1);
    assert_int_equal(event_view.n_starts, 2);
    dpt_pending_destroy(&book);
    book = open_writer(1, true); /* a new process goes further back */
    add_steps(book, 3, 2, 3);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.375 3:3.375");
    dpt_pending_destroy(&book);
    book = open_writer(0, true); /* from the beginning */
    add_step(book, 1, 1);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125");
    dpt_pending_destroy(&book);
}

/* An evaluation that a rollback interrupted is logged after the later steps; its own step stays. */
static void evaluation_after_a_rollback(void **state)
{
    (void)state;
    make_log_dir("evaluation");
    struct dpt_pending *book = open_writer(0, true);
    add_steps(book, 1, 1, 5);
    begin_again(book, true, 3);
    add_evaluation(book, 3);
    add_step(book, 2, 4);
    dpt_pending_destroy(&book);
    book = open_writer(4, true);
    add_step(book, 3, 5);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"),
                        "1:1.125 2:2.125 3:3.125 4:4.25 5:5.375");
    assert_string_equal(event_view_points(dir, "eval/loss"), "3:0.25");
}

/* A new process goes far back and repeats the evaluation of the step from which it continues. */
static void evaluation_made_again_counts_once(void **state)
{
    (void)state;
    make_log_dir("evaluation-again");
    struct dpt_pending *book = open_writer(0, true);
    add_steps(book, 1, 1, 2);
    add_evaluation(book, 2);
    add_steps(book, 1, 3, 500);
    dpt_pending_destroy(&book);
    book = open_writer(2, true);
    add_evaluation(book, 2);
    assert_string_equal(event_view_points(dir, "eval/loss"), "2:0.25");
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125");
    add_step(book, 2, 3);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125 3:3.25");
}

static void writers_that_alternate(void **state)
{
    (void)state;
    make_log_dir("two");
    struct dpt_pending *a = open_writer(0, true), *b = open_writer(0, true);
    begin_again(b, false, 0);
    add_steps(a, 1, 1, 3);
    begin_again(a, false, 3);
    begin_again(b, true, 3);
    add_steps(b, 2, 4, 5);
    begin_again(b, true, 5);
    add_step(b, 3, 6); /* in the same file */
    begin_again(b, false, 6);
    begin_again(a, true, 6);
    add_step(a, 4, 7);
    dpt_pending_destroy(&a);
    dpt_pending_destroy(&b);
    assert_string_equal(event_view_points(dir, "train/loss"),
                        "1:1.125 2:2.125 3:3.125 4:4.25 5:5.25 6:6.375 7:7.5");
    assert_int_equal(event_view.n_files, 3);
}

/* The clock of the node with the newest file was ahead. */
static void file_of_the_future(void **state)
{
    (void)state;
    make_log_dir("future");
    char path[256];
    (void)snprintf(path, sizeof path, "%s/events.out.tfevents.8888888888.b.1", dir);
    struct dpt_event_records records;
    records.bytes = 0;
    dpt_event_add_version(&records, 1.7e9);
    assert_int_equal(dpt_fs_append(path, records.data, records.bytes, &err), DPT_OK);
    struct dpt_pending *book = open_writer(0, true);
    add_step(book, 1, 1);
    dpt_pending_destroy(&book);
    char **names = NULL;
    size_t n = 0;
    assert_int_equal(dpt_fs_list(dir, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 3);
    assert_int_equal(strncmp(names[1], "events.out.tfevents.8888888889.", 31), 0);
    dpt_fs_list_free(&names, n);
}

/* The event file takes no byte, but metrics.jsonl does: the line is lost, and the file goes on when
 * there is room again. */
static void line_that_does_not_fit(void **state)
{
    (void)state;
    make_log_dir("full");
    struct dpt_pending *book = open_writer(0, true);
    add_step(book, 1, 1);
    char **names = NULL, path[PATH_MAX], kept[PATH_MAX];
    size_t n = 0;
    assert_int_equal(dpt_fs_list(dir, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 2);
    assert_int_equal(dpt_fs_join(dir, names[0], path, sizeof path, &err), DPT_OK);
    assert_int_equal(dpt_fs_join(dir, "kept", kept, sizeof kept, &err), DPT_OK);
    dpt_fs_list_free(&names, n);
    assert_int_equal(rename(path, kept), 0);
    assert_int_equal(symlink("/dev/full", path), 0);
    add_step(book, 1, 2);
    assert_int_equal(n_lost, 1);
    assert_non_null(strstr(lost_text, "events.out.tfevents."));
    assert_non_null(strstr(lost_text, "No space left on device"));
    assert_int_equal(rename(kept, path), 0);
    add_step(book, 1, 3);
    assert_int_equal(n_lost, 1);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 3:3.125");
}

/* The first records of a file do not fit: no file stays, and the next line begins one. */
static void file_that_does_not_fit(void **state)
{
    (void)state;
    make_log_dir("full-at-first");
    struct dpt_pending *book = open_writer(0, true);
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    (void)signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small = {350, limit.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    add_step(book, 1, 1);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    assert_int_equal(n_lost, 1);
    assert_non_null(strstr(lost_text, "events.out.tfevents."));
    assert_string_equal(event_view_points(dir, "train/loss"), "");
    add_step(book, 1, 2); /* the file repeats the line that was lost */
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125");
    assert_int_equal(event_view.n_files, 1);
}

/* metrics.jsonl may hold any bytes after a power failure. */
static void metrics_that_are_damaged(void **state)
{
    (void)state;
    make_log_dir("damaged");
    static const char text[] =
        "{\"step\": 1, \"loss\": 1.5, \"time\": 2e9}\n\0\0\0\0\n"
        "{\"step\": 2, \"lo\n{\"step\": 9223372036854775807, \"val_loss\": 1}\n";
    char path[256];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(dpt_fs_append(path, text, sizeof text - 1, &err), DPT_OK);
    struct dpt_pending *book = open_writer(1, true);
    add_step(book, 1, 2);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.5 2:2.125");
}

/* The old log is longer than the part that a new file looks at, and the run starts again. */
static void long_log_of_a_run_that_starts_again(void **state)
{
    (void)state;
    make_log_dir("long");
    struct dpt_pending *book = open_writer(0, true);
    add_steps(book, 1, 1, 2);
    dpt_pending_destroy(&book);
    char path[256];
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    assert_int_equal(truncate(path, 17 << 20), 0);
    book = open_writer(0, true);
    add_step(book, 2, 1);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.25");
    assert_int_equal(event_view.n_files, 2);
}

static void add_event(struct dpt_pending *book)
{
    const struct dpt_run_files log = {dir, "a-run", 1, 2, hold_line, book};
    const struct dpt_event_record e = {.kind = "start", .cause = "", .redundancy = "none"};
    assert_int_equal(dpt_run_file_event(&log, &e, &err), DPT_OK);
}

static void line_of_a_generation_begins_the_file(void **state)
{
    (void)state;
    make_log_dir("event");
    struct dpt_pending *book = open_writer(0, true);
    add_event(book);
    assert_string_equal(event_view_points(dir, "train/loss"), "");
    assert_true(event_view.n_files == 1 && event_view.n_starts == 0);
    add_steps(book, 1, 1, 2);
    begin_again(book, true, 2);
    add_event(book); /* the file is continued */
    add_step(book, 1, 3);
    dpt_pending_destroy(&book);
    add_step(NULL, 1, 4); /* a writer that was killed before it wrote the event file */
    book = open_writer(4, true);
    add_event(book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125 3:3.125 4:4.125");
    assert_int_equal(event_view.n_files, 2);
    begin_again(book, true, 2);
    add_event(book);
    add_step(book, 2, 3);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125 3:3.25");
    assert_true(event_view.n_files == 2 && n_lost == 0);
    book = open_writer(0, false); /* without the key there is no other file */
    add_event(book);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1.125 2:2.125 3:3.25");
    assert_int_equal(event_view.n_files, 2);
}

/* The log writer died after the commit of step 2, and its successor logs the step. */
static void rates_that_are_unknown(void **state)
{
    (void)state;
    make_log_dir("unknown");
    struct dpt_pending *book = open_writer(0, true);
    const struct dpt_run_files log = {dir, "a-run", 1, 2, hold_line, book};
    for (int64_t step = 1; step <= 3; step++) {
        const double ms = step == 2 ? 0 : 4;
        const struct dpt_metrics m = {
            .step = step, .loss = 1, .tokens_per_s = 2 * ms, .step_ms = ms, .wait_ms = 0};
        const struct dpt_epoch_record e = {
            .step = step, .epoch = step, .epochs = 3, .avg_loss = 1, .samples_per_s = ms};
        assert_int_equal(dpt_run_file_metrics(&log, &m, &err), DPT_OK);
        assert_int_equal(dpt_run_file_epoch(&log, &e, &err), DPT_OK);
    }
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "1:1 2:1 3:1");
    assert_string_equal(event_view_points(dir, "speed/tokens_per_s"), "1:8 3:8");
    assert_string_equal(event_view_points(dir, "speed/step_ms"), "1:4 3:4");
    assert_string_equal(event_view_points(dir, "speed/wait_ms"), "1:0 3:0");
    assert_string_equal(event_view_points(dir, "speed/sent_bytes"), "1:0 3:0");
    assert_string_equal(event_view_points(dir, "epoch/samples_per_s"), "1:4 3:4");
    assert_string_equal(event_view_points(dir, "epoch/loss"), "1:1 2:1 3:1");
}

static void no_file_without_the_key(void **state)
{
    (void)state;
    make_log_dir("off");
    struct dpt_pending *book = open_writer(0, false);
    add_steps(book, 1, 1, 3);
    dpt_pending_destroy(&book);
    assert_string_equal(event_view_points(dir, "train/loss"), "");
    assert_int_equal(event_view.n_files, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_checksums),
        cmocka_unit_test(each_step_has_one_record),
        cmocka_unit_test(values_that_are_not_finite),
        cmocka_unit_test(next_writer_adds_the_line_of_a_killed_writer),
        cmocka_unit_test(steps_computed_again_count_once),
        cmocka_unit_test(evaluation_after_a_rollback),
        cmocka_unit_test(evaluation_made_again_counts_once),
        cmocka_unit_test(writers_that_alternate),
        cmocka_unit_test(file_of_the_future),
        cmocka_unit_test(line_that_does_not_fit),
        cmocka_unit_test(file_that_does_not_fit),
        cmocka_unit_test(metrics_that_are_damaged),
        cmocka_unit_test(long_log_of_a_run_that_starts_again),
        cmocka_unit_test(line_of_a_generation_begins_the_file),
        cmocka_unit_test(rates_that_are_unknown),
        cmocka_unit_test(no_file_without_the_key),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
