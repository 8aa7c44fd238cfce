/* dpt-data encode with a process that dies or a full disk, at any time and any number of times; its
 * refusals. */
#include "tests/worker/data/prepare/prepare_fixture.h"

#include "worker/data/prepare/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

enum { OPERATIONS_MAX = 2000 };

/* ---------------------------------------------------------------- deaths and full disks */

static int countdown, failure;

static int hook(const char *operation, const char *path)
{
    (void)operation;
    (void)path;
    if (countdown-- > 0)
        return 0;
    if (failure == 0)
        (void)raise(SIGKILL);
    return failure;
}

/* In a child that dies before its `at`-th change of the disk; true when it got to the end. */
static bool encode_and_die(const char *out, int at)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        countdown = at;
        failure = 0;
        dpt_prepare_fault_hook = hook;
        _exit(encode(out) == DPT_OK ? 0 : 1);
    }
    int code;
    assert_int_equal(waitpid(pid, &code, 0), pid);
    const bool died = WIFSIGNALED(code) && WTERMSIG(code) == SIGKILL;
    assert_true(died || (WIFEXITED(code) && WEXITSTATUS(code) == 0));
    return !died;
}

static void death_at_every_step(void **state)
{
    (void)state;
    int at = 0;
    add_all();
    OK(encode("whole"));
    for (bool ended = false; !ended; at++) {
        assert_true(at < OPERATIONS_MAX);
        ended = encode_and_die("died", at);
        OK(encode("died"));
        assert_true(result.was_done || !ended);
        expect_same("whole", "died");
        OK(dpt_fs_remove_tree(in_root("died"), &err));
    }
    assert_true(at > 60);
}

/* Dies again and again, and still gets to the end. */
static void many_deaths(void **state)
{
    (void)state;
    int deaths = 0;
    add_all();
    OK(encode("whole"));
    while (!encode_and_die("died", 40)) {
        deaths++;
        assert_true(deaths < 100);
    }
    assert_true(deaths >= 2);
    expect_same("whole", "died");
}

/* Any call fails, for want of room or otherwise: said, and the next run goes on. */
static void failure_of_every_call(void **state)
{
    (void)state;
    static const struct {
        int error;
        enum dpt_status status;
    } errors[] = {{ENOSPC, DPT_ENOSPC}, {EIO, DPT_EIO}};
    add_all();
    OK(encode("whole"));
    int at = 0;
    for (bool ended = false; !ended; at++) {
        assert_true(at < OPERATIONS_MAX);
        countdown = at;
        failure = errors[at % 2].error;
        dpt_prepare_fault_hook = hook;
        const enum dpt_status status = encode("failed");
        dpt_prepare_fault_hook = NULL;
        ended = status == DPT_OK;
        if (!ended)
            assert_int_equal(status, errors[at % 2].status);
        OK(encode("failed"));
        expect_same("whole", "failed");
        OK(dpt_fs_remove_tree(in_root("failed"), &err));
    }
    assert_true(at > 60);
}

/* ---------------------------------------------------------------- refusals */

static void other_settings(void **state)
{
    (void)state;
    add_all();
    OK(encode("out"));
    OK(encode("out"));
    assert_true(result.was_done);
    assert_int_equal(result.split[0].documents + result.split[1].documents, 5 + DOCUMENTS);
    options.cut.seed = 6;
    expect_refusal("out", DPT_EREFUSED, "seed was 5, now it is 6");
    options.cut.seed = 5;
    options.shard_tokens = 2000;
    expect_refusal("out", DPT_EREFUSED, "shard_tokens was 1500, now it is 2000");
    options.shard_tokens = 1500;
    options.vocab.kind = DPT_TOKENIZER_BYTES;
    expect_refusal("out", DPT_EREFUSED, "tokenizer was \"gpt2\", now it is \"bytes\"");
    options.vocab.kind = DPT_TOKENIZER_GPT2;
    add("texts/a.txt", false);
    expect_refusal("out", DPT_EREFUSED, "input_files was 6, now it is 7");
    dpt_inputs_fini(&inputs);
    add("texts/more/../", false);
    expect_refusal("out", DPT_EREFUSED, "input_paths_and_sizes was ");
}

static void continuing_refuses_changed_options(void **state)
{
    (void)state;
    add_all();
    assert_false(encode_and_die("out", 60));
    assert_true(dpt_fs_exists(in_root("out/" DPT_STATE_NAME)));
    options.cut.val_fraction = 0.3;
    expect_refusal("out", DPT_EREFUSED, "val_fraction was \"0.2\", now it is \"0.3\"");
    options.cut.val_fraction = 0.2;
    write_text("texts/more/f.txt", 1, 4); /* the same, made again */
    expect_refusal("out/..//texts/../out2", DPT_ECORRUPT,
                   "put the former file back and start again, or name a new --out");
    dpt_inputs_fini(&inputs);
    add("texts", false);
    expect_refusal("out", DPT_EREFUSED, "an input was changed since");
}

/* A finished encoding counts as finished only while its shards exist and its inputs are
 * unchanged. */
static void done_is_looked_at(void **state)
{
    (void)state;
    add_all();
    OK(encode("out"));
    OK(encode("out"));
    assert_true(result.was_done);
    assert_int_equal(rename(in_root("out/train_000001.bin"), in_root("away")), 0);
    expect_refusal("out", DPT_ECORRUPT, "/train_000001.bin' is not the file of");
    write_string("out/train_000001.bin", "cut");
    expect_refusal("out", DPT_ECORRUPT, "/train_000001.bin' is not the file of");
    assert_int_equal(rename(in_root("away"), in_root("out/train_000001.bin")), 0);
    OK(encode("out"));
    assert_true(result.was_done);
    /* As long as before, later than the record by the clock of files. */
    const struct timespec later[2] = {{.tv_sec = time(NULL) + 10}, {.tv_sec = time(NULL) + 10}};
    write_string("texts/c.txt", "one text without an end");
    assert_int_equal(utimensat(AT_FDCWD, in_root("texts/c.txt"), later, 0), 0);
    dpt_inputs_fini(&inputs);
    add("texts", false);
    expect_refusal("out", DPT_EREFUSED, "/c.txt' was changed since '");
}

static void damaged_folders(void **state)
{
    (void)state;
    add_all();
    assert_false(encode_and_die("out", 100));
    write_string("out/train_000000.bin", "cut");
    expect_refusal("out", DPT_ECORRUPT, "/train_000000.bin' is not the file of");
    write_string("out/" DPT_STATE_NAME, "{\"dpt-data\": 1}");
    expect_refusal("out", DPT_EREFUSED, "tokenizer was unset");
    write_string("out/" DPT_STATE_NAME, "{\"dpt-data\": 2}");
    expect_refusal("out", DPT_ECORRUPT, "dpt-data.state' cannot be understood");
    write_string("out/" DPT_STATE_NAME, "");
    expect_refusal("out", DPT_ECORRUPT, "dpt-data.state' cannot be understood");
    OK(dpt_fs_mkdirs(in_root("theirs"), &err));
    write_string("theirs/val_000000.bin", "somebody's");
    expect_refusal("theirs", DPT_EREFUSED, "/val_000000.bin' is there and no dpt-data.json");
    OK(dpt_fs_mkdirs(in_root("locked"), &err));
    int fd = open(in_root("locked"), O_RDONLY | O_DIRECTORY);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    expect_refusal("locked", DPT_EREFUSED, "another dpt-data writes to");
    assert_int_equal(close(fd), 0);
    OK(encode("locked"));
}

static void bad_documents(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what;
    } cases[] = {
        {"{\"text\": \"a\"}\n\n{\"text\": \"b\"\n", "/b.jsonl', line 3: no JSON: "},
        {"{\"text\": \"a\"}\n{\"body\": \"b\"}\n", "line 2: no member of that name; --text-key"},
        {"{\"text\": \"a\"}\n{\"text\": 5}\n", "line 2: its text is no string"},
        {"{\"text\": \"a\"}\n[\"text\"]", "line 2: no JSON object"},
        {"{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n", "line 2: no JSON: "}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_string("b.jsonl", cases[i].text);
        dpt_inputs_fini(&inputs);
        add("b.jsonl", false);
        expect_refusal("out", DPT_ECORRUPT, cases[i].what);
        OK(dpt_fs_remove_tree(in_root("out"), &err));
    }
    write_string("b.jsonl", "{\"body\": \"b\"}\n{\"body\": \"\"}\n{\"body\": \"a\\u0000c\"}");
    dpt_inputs_fini(&inputs);
    add("b.jsonl", false);
    options.text_key = "body";
    OK(encode("out"));
    assert_int_equal(result.split[0].documents + result.split[1].documents, 2);
}

static void nothing_to_split(void **state)
{
    (void)state;
    write_string("t.txt", "one document");
    add("t.txt", false);
    expect_refusal("out", DPT_EINVAL, "nothing to split: 1 document; --split line");
    options.cut.unit = DPT_UNIT_LINES;
    expect_refusal("out", DPT_EINVAL, "nothing to split");
    write_string("j.jsonl", "{\"text\": \"a\"}\n");
    add("j.jsonl", false);
    expect_refusal("out", DPT_EINVAL, "/j.jsonl' is split by its documents");
    assert_int_equal(dpt_inputs_add(&inputs, in_root("nowhere"), "txt", false, &err), DPT_ENOENT);
    assert_int_equal(dpt_inputs_add(&inputs, "/dev/null", "txt", false, &err), DPT_EINVAL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(death_at_every_step),
                                       TEST(many_deaths),
                                       TEST(failure_of_every_call),
                                       TEST(other_settings),
                                       TEST(continuing_refuses_changed_options),
                                       TEST(done_is_looked_at),
                                       TEST(damaged_folders),
                                       TEST(bad_documents),
                                       TEST(nothing_to_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
