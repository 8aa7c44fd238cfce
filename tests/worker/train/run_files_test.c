/* The files of a run: whole lines, and the last step of a file in any state. */
#include "worker/train/log/run_files.h"

#include "base/fs.h"
#include "tests/tmp.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static char dir[64];
static const struct dpt_run_files here = {
    .dir = dir, .run = "a-run", .generation = 2, .world_size = 3};

static int setup(void **state)
{
    (void)state;
    return test_make_dir(dir, sizeof dir, "test-run-files") ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    struct dpt_err err;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

static void path_of(const char *name, char ret[128])
{
    (void)snprintf(ret, 128, "%s/%s", dir, name);
}

static void write_text(const char *name, const char *text, size_t bytes)
{
    char path[128];
    path_of(name, path);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static int64_t last_step(void)
{
    struct dpt_run_file_place last = {.step = -7};
    struct dpt_err err = {.status = DPT_OK};
    if (dpt_run_file_last(dir, &last, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return last.step;
}

static struct dpt_metrics metrics_at(int64_t step)
{
    return (struct dpt_metrics){.step = step,
                                .loss = 1.0 / 3,
                                .lr = 1e-3,
                                .grad_norm = 2,
                                .tokens = 64 * step,
                                .tokens_per_s = 1e4,
                                .step_ms = 2.5,
                                .wait_ms = 0.5,
                                .sent_bytes = 4096};
}

static void append_step(int64_t step)
{
    struct dpt_metrics m = metrics_at(step);
    struct dpt_err err;
    if (dpt_run_file_metrics(&here, &m, &err) != DPT_OK)
        fail_msg("%s", err.text);
}

static void last_step_of_metrics_is_found(void **state)
{
    (void)state;
    assert_int_equal(last_step(), -1); /* absent */
    static const struct {
        const char *text;
        int64_t step;
    } cases[] = {
        {"", -1},
        {"\n", -1},
        {"\n\n\n", -1},
        {"{\"step\": 3", -1},
        {"{\"step\": 3}", -1}, /* no newline: perhaps half a line */
        {"{\"step\": 3}\n", 3},
        {"{\"step\": 3}\n{\"step\": 4, \"lo", 3},
        {"{\"step\": 3}\n{\"step\": 4, \"loss\": 1}\n", 4},
        {"{\"step\": 3}\nnot json\n", 3},
        {"{\"step\": 3}\n{\"loss\": 3}\n", 3},
        {"{\"step\": 3}\n{\"step\": \"4\"}\n", 3},
        {"{\"step\": 3}\n{\"step\": 4, \"lo{\"step\": 5}\n", 3},
        {"{\"step\": 3}\n\n", 3},
        {"[1]\n", -1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text("metrics.jsonl", cases[i].text, strlen(cases[i].text));
        if (last_step() != cases[i].step)
            fail_msg("'%s' gives %lld", cases[i].text, (long long)last_step());
    }
}

/* A machine that lost power leaves zeros where its last lines should be. */
static void zeros_at_the_end(void **state)
{
    (void)state;
    static const char zeros[] = "{\"step\": 3}\n{\"step\": 4}\n\0\0\0\0\0\0";
    write_text("metrics.jsonl", zeros, sizeof zeros - 1);
    assert_int_equal(last_step(), 4);
    static const char between[] = "{\"step\": 3}\n\0\0\0\0\0\0\n{\"step\": 5}\n";
    write_text("metrics.jsonl", between, sizeof between - 1);
    assert_int_equal(last_step(), 5);
}

/* Only the end of a long file is read, at any place in a line. */
static void a_long_file(void **state)
{
    (void)state;
    char path[128];
    path_of("metrics.jsonl", path);
    for (int pad = 0; pad < 200; pad += 7) {
        FILE *f = fopen(path, "w");
        assert_non_null(f);
        for (int i = 0; i < pad; i++)
            (void)fputc('x', f);
        for (int i = 1; i <= 2000; i++)
            (void)fprintf(f, "{\"step\": %d, \"loss\": %d.5}\n", i, i);
        assert_int_equal(fclose(f), 0);
        assert_int_equal(last_step(), 2000);
    }
    /* 8 GiB of nothing, then two records: quick all the same. */
    assert_int_equal(truncate(path, (off_t)8 << 30), 0);
    FILE *f = fopen(path, "a");
    assert_non_null(f);
    (void)fprintf(f, "\n{\"step\": 6}\n{\"step\": 7}\n");
    assert_int_equal(fclose(f), 0);
    assert_int_equal(last_step(), 7);
}

static void records_are_whole_lines(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    for (int i = 1; i <= 20; i++) {
        append_step(i);
        assert_int_equal(last_step(), i);
    }
    char path[128], line[1024];
    path_of("metrics.jsonl", path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (int i = 1; i <= 20; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        json_t *record = json_loads(line, 0, NULL);
        assert_non_null(record);
        assert_int_equal(json_integer_value(json_object_get(record, "step")), i);
        assert_true(json_real_value(json_object_get(record, "loss")) == 1.0 / 3);
        assert_true(json_real_value(json_object_get(record, "wait_ms")) == 0.5);
        assert_int_equal(json_integer_value(json_object_get(record, "sent_bytes")), 4096);
        static const char *const keys[] = {"lr",         "grad_norm", "tokens",     "tokens_per_s",
                                           "step_ms",    "wait_ms",   "sent_bytes", "generation",
                                           "world_size", "time"};
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
            assert_true(json_is_number(json_object_get(record, keys[k])));
        assert_null(json_object_get(record, "scale")); /* of fp16 alone */
        assert_null(json_object_get(record, "skipped_steps"));
        json_decref(record);
    }
    assert_null(fgets(line, sizeof line, f));
    assert_int_equal(fclose(f), 0);
}

static void a_scaled_step(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    struct dpt_metrics m = metrics_at(3);
    m.is_scaled = true;
    m.scale = 65536;
    m.skipped_steps = 2;
    struct dpt_err err;
    assert_int_equal(dpt_run_file_metrics(&here, &m, &err), DPT_OK);
    char path[128];
    path_of("metrics.jsonl", path);
    json_t *record = json_load_file(path, 0, NULL);
    assert_non_null(record);
    assert_true(json_number_value(json_object_get(record, "scale")) == 65536);
    assert_int_equal(json_integer_value(json_object_get(record, "skipped_steps")), 2);
    json_decref(record);
}

/* Half a line, left by a full disk, costs that line alone. */
static void a_record_after_half_a_line(void **state)
{
    (void)state;
    static const char half[] = "{\"step\": 1}\n{\"step\": 2, \"lo";
    write_text("metrics.jsonl", half, sizeof half - 1);
    append_step(3);
    assert_int_equal(last_step(), 3);
}

static void numbers_that_are_none(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    struct dpt_metrics m = metrics_at(9);
    m.loss = (double)NAN;
    m.grad_norm = (double)INFINITY;
    m.lr = (double)-INFINITY;
    struct dpt_err err;
    assert_int_equal(dpt_run_file_metrics(&here, &m, &err), DPT_OK);
    assert_int_equal(last_step(), 9); /* so the line is JSON */
    const struct dpt_summary s = {.run = "r", .told = {.loss = (double)NAN, .weights_hash = "00"}};
    assert_int_equal(dpt_run_file_summary(dir, &s, &err), DPT_OK);
    char path[128];
    path_of("summary.json", path);
    json_t *summary = json_load_file(path, 0, NULL);
    assert_non_null(summary);
    assert_true(json_is_null(json_object_get(summary, "loss")));
    json_decref(summary);
}

static bool ends_with_evaluation(void)
{
    struct dpt_run_file_place last;
    struct dpt_err err;
    assert_int_equal(dpt_run_file_last(dir, &last, &err), DPT_OK);
    return last.kind == DPT_LINE_EVALUATION;
}

/* An evaluation has a separate line, which its fields distinguish from a step's. */
static void test_place_of_evaluation(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    assert_false(ends_with_evaluation());
    append_step(9);
    assert_false(ends_with_evaluation());
    struct dpt_eval_record e = {.step = 9, .val_loss = 1.0 / 3, .tokens = 640, .ms = 1.5};
    struct dpt_err err;
    assert_int_equal(dpt_run_file_eval(&here, &e, &err), DPT_OK);
    assert_int_equal(last_step(), 9);
    assert_true(ends_with_evaluation());
    append_step(10);
    assert_false(ends_with_evaluation());
    e.step = 10;
    e.val_loss = e.ms = (double)NAN; /* a diverged run; made by others */
    assert_int_equal(dpt_run_file_eval(&here, &e, &err), DPT_OK);
    assert_true(ends_with_evaluation());
    assert_int_equal(last_step(), 10);
    char path[128], line[1024];
    path_of("metrics.jsonl", path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(fgets(line, sizeof line, f));
    json_t *record = json_loads(line, 0, NULL);
    assert_non_null(record);
    assert_int_equal(json_integer_value(json_object_get(record, "step")), 9);
    assert_true(json_real_value(json_object_get(record, "val_loss")) == 1.0 / 3);
    assert_string_equal(json_string_value(json_object_get(record, "run")), "a-run");
    static const char *const keys[] = {"val_tokens", "val_ms", "generation", "world_size", "time"};
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++)
        assert_true(json_is_number(json_object_get(record, keys[k])));
    assert_null(json_object_get(record, "loss")); /* which readers of steps look for */
    json_decref(record);
    assert_int_equal(fclose(f), 0);
}

/* With labels it has how many are predicted, and no tokens. */
static void evaluations_of_labels(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    const struct dpt_eval_record e = {
        .step = 9, .val_loss = 1.5, .right = 5, .samples = 16, .ms = 1.5};
    struct dpt_err err;
    assert_int_equal(dpt_run_file_eval(&here, &e, &err), DPT_OK);
    assert_true(ends_with_evaluation());
    char path[128], line[1024];
    path_of("metrics.jsonl", path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_int_equal(fclose(f), 0);
    assert_int_equal(dpt_run_file_evaluation(&here, &e, "00ff", &err), DPT_OK);
    path_of("evaluation.json", path);
    const struct dpt_summary summary = {
        .run = "r",
        .told = {.val_loss = 1.5, .val_right = 5, .val_samples = 16, .weights_hash = "00"}};
    assert_int_equal(dpt_run_file_summary(dir, &summary, &err), DPT_OK);
    char path_of_summary[128];
    path_of("summary.json", path_of_summary);
    json_t *said[] = {json_loads(line, 0, NULL), json_load_file(path, 0, NULL),
                      json_load_file(path_of_summary, 0, NULL)};
    for (size_t i = 0; i < sizeof said / sizeof said[0]; i++) {
        assert_non_null(said[i]);
        assert_true(json_real_value(json_object_get(said[i], "val_loss")) == 1.5);
        assert_true(json_real_value(json_object_get(said[i], "val_accuracy")) == 0.3125);
        assert_int_equal(json_integer_value(json_object_get(said[i], "val_samples")), 16);
        assert_null(json_object_get(said[i], "val_tokens"));
        assert_null(json_object_get(said[i], "perplexity"));
        json_decref(said[i]);
    }
}

/* So is an epoch, between its last step and the evaluation after it. */
static void test_place_of_epoch(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    append_step(9);
    const struct dpt_epoch_record e = {.epoch = 3,
                                       .epochs = 10,
                                       .step = 9,
                                       .first_step = 7,
                                       .avg_loss = 1.0 / 3,
                                       .seconds = 1.5,
                                       .samples_per_s = 512};
    struct dpt_run_file_place last, step = {.step = 9};
    const struct dpt_run_file_place evaluation = {.step = 9, .kind = DPT_LINE_EVALUATION};
    struct dpt_err err;
    assert_int_equal(dpt_run_file_epoch(&here, &e, &err), DPT_OK);
    assert_int_equal(dpt_run_file_last(dir, &last, &err), DPT_OK);
    assert_true(last.step == 9 && last.kind == DPT_LINE_EPOCH && last.generation == 2);
    assert_true(dpt_run_file_is_after(&last, &step) && !dpt_run_file_is_after(&step, &last));
    assert_true(dpt_run_file_is_after(&evaluation, &last) &&
                !dpt_run_file_is_after(&last, &evaluation));
    char path[128], line[1024];
    path_of("metrics.jsonl", path);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(fgets(line, sizeof line, f));
    json_t *record = json_loads(line, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(record, "epoch")), 3);
    assert_int_equal(json_integer_value(json_object_get(record, "epochs")), 10);
    assert_int_equal(json_integer_value(json_object_get(record, "first_step")), 7);
    assert_true(json_real_value(json_object_get(record, "avg_loss")) == 1.0 / 3);
    assert_true(json_real_value(json_object_get(record, "samples_per_s")) == 512);
    assert_null(json_object_get(record, "loss")); /* which readers of steps look for */
    json_decref(record);
    assert_int_equal(fclose(f), 0);
}

static void evaluation_file_has_its_fields(void **state)
{
    (void)state;
    struct dpt_eval_record e = {.step = 9, .val_loss = 0, .tokens = 640, .ms = 2};
    struct dpt_err err;
    assert_int_equal(dpt_run_file_evaluation(&here, &e, "00ff", &err), DPT_OK);
    char path[128];
    path_of("evaluation.json", path);
    json_t *file = json_load_file(path, 0, NULL);
    assert_non_null(file);
    assert_int_equal(json_integer_value(json_object_get(file, "step")), 9);
    assert_true(json_real_value(json_object_get(file, "perplexity")) == 1);
    assert_string_equal(json_string_value(json_object_get(file, "weights_hash")), "00ff");
    json_decref(file);
    e.val_loss = 1e6; /* exp overflows: no number of JSON */
    assert_int_equal(dpt_run_file_evaluation(&here, &e, "00ff", &err), DPT_OK);
    file = json_load_file(path, 0, NULL);
    assert_non_null(file);
    assert_true(json_is_null(json_object_get(file, "perplexity")));
    assert_true(json_real_value(json_object_get(file, "val_loss")) == 1e6);
    json_decref(file);
}

/* A cause may quote a path or a peer's words: any bytes. */
static void an_event_quotes_anything(void **state)
{
    (void)state;
    static const char *const causes[] = {"plain", "a \"quoted\" one\nof two lines",
                                         "\xff\xfe bytes", "cut \xc3"};
    char path[128], line[1024];
    path_of("events.jsonl", path);
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        const struct dpt_event_record e = {.kind = "node_lost",
                                           .cause = causes[i],
                                           .sends_bytes = 7000,
                                           .redundancy = i == 1 ? "whole" : "none"};
        struct dpt_err err;
        if (dpt_run_file_event(&here, &e, &err) != DPT_OK)
            fail_msg("%s", err.text);
    }
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        assert_non_null(fgets(line, sizeof line, f));
        json_t *record = json_loads(line, 0, NULL);
        assert_non_null(record);
        assert_non_null(json_object_get(record, "cause"));
        assert_int_equal(json_integer_value(json_object_get(record, "sends_bytes")), 7000);
        assert_string_equal(json_string_value(json_object_get(record, "redundancy")),
                            i == 1 ? "whole" : "none");
        json_decref(record);
    }
    assert_null(fgets(line, sizeof line, f));
    assert_int_equal(fclose(f), 0);
}

/* The usual NaN of x86, of inf - inf, has its sign set. */
static void a_divergence_names_its_numbers(void **state)
{
    (void)state;
    char path[128], line[1024];
    const struct dpt_divergence_record d = {
        .step = 7, .loss = -(double)NAN, .grad_norm = (double)INFINITY, .action = "stop"};
    struct dpt_err err;
    assert_int_equal(dpt_run_file_divergence(&here, &d, &err), DPT_OK);
    path_of("events.jsonl", path);
    FILE *f = fopen(path, "r");
    assert_true(f && fgets(line, sizeof line, f) && fclose(f) == 0);
    assert_non_null(strstr(line, "\"loss\":\"nan\",\"grad_norm\":\"inf\""));
}

static void folders_that_fail(void **state)
{
    (void)state;
    struct dpt_metrics m = metrics_at(1);
    struct dpt_err err;
    assert_int_not_equal(
        dpt_run_file_metrics(&(struct dpt_run_files){.dir = "/proc/nowhere", .run = "r"}, &m, &err),
        DPT_OK);
    const struct dpt_summary s = {.run = "r", .told = {.weights_hash = "00"}};
    assert_int_not_equal(dpt_run_file_summary("/proc/nowhere", &s, &err), DPT_OK);
    struct dpt_run_file_place last = {.step = 5};
    assert_int_equal(dpt_run_file_last("/proc/nowhere", &last, &err), DPT_OK);
    assert_int_equal(last.step, -1);
    char path[128];
    path_of("file", path);
    write_text("file", "x", 1);
    assert_int_not_equal(
        dpt_run_file_metrics(&(struct dpt_run_files){.dir = path, .run = "r"}, &m, &err), DPT_OK);
    last.step = 5;
    assert_int_not_equal(dpt_run_file_last(path, &last, &err), DPT_OK);
    assert_int_equal(last.step, 5);
}

/* A disk that takes half a record: the error is reported, and later records are readable. */
static void a_disk_that_fills_up(void **state)
{
    (void)state;
    write_text("metrics.jsonl", "", 0);
    append_step(1);
    char path[128];
    path_of("metrics.jsonl", path);
    int64_t bytes = 0;
    struct dpt_err err;
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    bytes = ftell(f);
    assert_int_equal(fclose(f), 0);
    struct rlimit old, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = (rlim_t)(bytes + 20);
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    struct dpt_metrics m = metrics_at(2);
    enum dpt_status status = dpt_run_file_metrics(&here, &m, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(status, DPT_ENOSPC);
    assert_int_equal(last_step(), 1);
    append_step(3);
    assert_int_equal(last_step(), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(last_step_of_metrics_is_found, setup, teardown),
        cmocka_unit_test_setup_teardown(zeros_at_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_long_file, setup, teardown),
        cmocka_unit_test_setup_teardown(records_are_whole_lines, setup, teardown),
        cmocka_unit_test_setup_teardown(a_scaled_step, setup, teardown),
        cmocka_unit_test_setup_teardown(a_record_after_half_a_line, setup, teardown),
        cmocka_unit_test_setup_teardown(numbers_that_are_none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_place_of_evaluation, setup, teardown),
        cmocka_unit_test_setup_teardown(evaluations_of_labels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_place_of_epoch, setup, teardown),
        cmocka_unit_test_setup_teardown(evaluation_file_has_its_fields, setup, teardown),
        cmocka_unit_test_setup_teardown(an_event_quotes_anything, setup, teardown),
        cmocka_unit_test_setup_teardown(a_divergence_names_its_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_that_fail, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_fills_up, setup, teardown),
    };
    return cmocka_run_group_tests_name("run-files", tests, NULL, NULL);
}
