/* dpt-worker as a whole, in a separate process and without a server: its output, and that it ends
 * when told to, with any reader of its output. */
#include "base/clock.h"
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/agent/worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static const int ends[] = {SIGTERM, SIGINT, SIGQUIT, SIGHUP};
enum { ARGS_MAX = 16, WAIT_MS = 30000, N_ENDS = sizeof ends / sizeof ends[0] };

static char dir[64], config[96], text[2][65536]; /* of standard output, of standard error */
static pid_t running;                            /* 0: none */

static int setup_worker(void **state)
{
    (void)state;
    char yaml[512];
    struct dpt_err err;
    if (!test_make_dir(dir, sizeof dir, "worker"))
        return -1;
    char keys[96];
    (void)snprintf(keys, sizeof keys, "%s/keys", dir);
    if (setenv("DPT_KEY_DIR", keys, 1) != 0)
        return -1;
    (void)snprintf(config, sizeof config, "%s/config.yaml", dir);
    const int bytes = snprintf(yaml, sizeof yaml,
                               "run: test\n"
                               "data: {kind: text, train: %s}\n"
                               "checkpoint: {dir: %s/checkpoints}\n"
                               "log: {dir: %s/log}\n",
                               config, dir, dir);
    return dpt_fs_write_file_atomic(config, yaml, (size_t)bytes, &err) == DPT_OK ? 0 : -1;
}

static int teardown_worker(void **state)
{
    (void)state;
    struct dpt_err err;
    if (running > 0) /* the test has failed */
        (void)kill(running, SIGKILL);
    running = 0;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

/* A worker with pipes for its output; `args` ends with NULL. */
struct process {
    pid_t pid;
    int fds[2]; /* to read from */
    size_t used[2];
};

static void fill_pipe(int fd)
{
    static const char bytes[4096];
    const int flags = fcntl(fd, F_GETFL);
    assert_int_equal(fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
    while (write(fd, bytes, sizeof bytes) > 0)
        continue;
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(fcntl(fd, F_SETFL, flags), 0);
}

static struct process start(const char *const *args, bool full)
{
    char *argv[ARGS_MAX] = {"dpt-worker"};
    int argc = 1, pipes[2][2];
    for (; args[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)args[argc - 1];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        if (full)
            fill_pipe(pipes[i][1]);
    }
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (chdir(dir) != 0 || unsetenv("DPT_RDZV_ENDPOINT") != 0)
            _exit(99);
        for (int i = 0; i < 2; i++)
            if (dup2(pipes[i][1], 1 + i) < 0)
                _exit(99);
        for (size_t i = 0; i < N_ENDS; i++) /* in the background of a shell some are ignored */
            if (signal(ends[i], SIG_DFL) == SIG_ERR)
                _exit(99);
        exit(dpt_worker_run(argc, argv, "/bin/false"));
    }
    struct process process = {.pid = pid};
    running = pid;
    for (int i = 0; i < 2; i++) {
        close(pipes[i][1]);
        process.fds[i] = pipes[i][0];
        text[i][0] = '\0';
    }
    return process;
}
#define START(full, ...) start((const char *const[]){__VA_ARGS__, NULL}, full)

/* Reads the available output, within the time; false: both ends are closed. */
static bool read_some(struct process *process, int64_t until_ms)
{
    struct pollfd items[2];
    for (int i = 0; i < 2; i++)
        items[i] = (struct pollfd){.fd = process->fds[i], .events = POLLIN};
    const int64_t left_ms = until_ms - dpt_now_ms();
    if (left_ms <= 0 || poll(items, 2, (int)left_ms) <= 0)
        fail_msg("not in time; standard output: %s; standard error: %s", text[0], text[1]);
    for (int i = 0; i < 2; i++) {
        if (items[i].revents == 0)
            continue;
        ssize_t n = read(process->fds[i], text[i] + process->used[i],
                         sizeof text[i] - 1 - process->used[i]);
        if (n <= 0) {
            close(process->fds[i]);
            process->fds[i] = -1;
        } else {
            process->used[i] += (size_t)n;
            text[i][process->used[i]] = '\0';
        }
    }
    return process->fds[0] >= 0 || process->fds[1] >= 0;
}

static void wait_for_line(struct process *process, const char *what)
{
    const int64_t until_ms = dpt_now_ms() + WAIT_MS;
    while (strstr(text[0], what) == NULL)
        assert_true(read_some(process, until_ms));
}

/* It reads its signals from now on: no signal ends it by default. */
static void wait_until_it_takes_signals(const struct process *process)
{
    char path[64], status[4096];
    (void)snprintf(path, sizeof path, "/proc/%ld/status", (long)process->pid);
    for (const int64_t until_ms = dpt_now_ms() + WAIT_MS; dpt_now_ms() < until_ms;) {
        FILE *file = fopen(path, "re");
        assert_non_null(file);
        status[fread(status, 1, sizeof status - 1, file)] = '\0';
        (void)fclose(file);
        const char *blocked = strstr(status, "SigBlk:");
        assert_non_null(blocked);
        if (strtoull(blocked + strlen("SigBlk:"), NULL, 16) >> (SIGTERM - 1) & 1)
            return;
        (void)poll(NULL, 0, 1);
    }
    fail_msg("it takes no signals");
}

/* -1: it had to be killed. */
static int exit_code_of(const struct process *process)
{
    int status = 0;
    pid_t done = 0;
    for (const int64_t until_ms = dpt_now_ms() + WAIT_MS / 2; done == 0 && dpt_now_ms() < until_ms;
         (void)poll(NULL, 0, 1))
        done = waitpid(process->pid, &status, WNOHANG);
    if (done == 0) {
        (void)kill(process->pid, SIGKILL);
        (void)waitpid(process->pid, &status, 0);
    }
    running = 0;
    return done == 0 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int read_to_the_end(struct process *process)
{
    const int64_t until_ms = dpt_now_ms() + WAIT_MS;
    while (read_some(process, until_ms))
        continue;
    return exit_code_of(process);
}

static int end_process(struct process *process)
{
    (void)kill(process->pid, SIGTERM);
    return read_to_the_end(process);
}

static int lines_of(const char *of)
{
    int n = 0;
    for (; (of = strchr(of, '\n')) != NULL; of++)
        n++;
    return n;
}

/* The closing lines do not wait for a reader either. */
static void ends_though_nobody_reads(void **state)
{
    (void)state;
    struct process process =
        START(true, "--config", config, "--rdzv-endpoint", "127.0.0.1:1", "--node-id", "a");
    wait_until_it_takes_signals(&process);
    (void)kill(process.pid, SIGTERM);
    assert_int_equal(exit_code_of(&process), 0);
    close(process.fds[0]);
    close(process.fds[1]);
}

static void start_is_one_line(void **state)
{
    (void)state;
    struct process process =
        START(false, "--config", config, "--rdzv-endpoint", "127.0.0.1:1", "--node-id", "a");
    wait_for_line(&process, "waiting for a server at 127.0.0.1:1 ");
    assert_int_equal(lines_of(text[1]), 1);
    assert_non_null(strstr(text[1],
                           ": run test at 127.0.0.1:1 (from --rdzv-endpoint): 1 rank here, "
                           "world of at most "));
    assert_true(strlen(text[1]) < 160);
    assert_int_equal(end_process(&process), 0);
    assert_int_equal(lines_of(text[0]), 2);
    assert_non_null(strstr(text[0], "left the run as asked: run test: no server answered; "
                                    "nothing was begun\n"));
}

/* Which run it takes part in is not known before a server has answered. */
static void run_is_not_named_before_it_is_known(void **state)
{
    (void)state;
    struct process process = START(false, "--rdzv-endpoint", "127.0.0.1:1", "--node-id", "a");
    wait_for_line(&process, "waiting for a server at 127.0.0.1:1 ");
    assert_string_equal(text[1], "");
    assert_int_equal(end_process(&process), 0);
}

static void unknown_host_is_said_though_quiet(void **state)
{
    (void)state;
    struct process process = START(false, "--quiet", "--config", config, "--rdzv-endpoint",
                                   "no-such-host.invalid:29500");
    wait_for_line(&process, "the name 'no-such-host.invalid' ");
    assert_int_equal(end_process(&process), 0);
    assert_string_equal(text[1], "");
}

/* What fails before the loop is one line, too. */
static void failure_is_one_line(void **state)
{
    (void)state;
    struct process process =
        START(false, "--config", config, "--rdzv-endpoint", "no port here:x", "--node-id", "a");
    assert_int_equal(read_to_the_end(&process), 2);
    assert_string_equal(text[0], "");
    assert_int_equal(lines_of(text[1]), 1);
    assert_int_equal(strncmp(text[1], "dpt-worker: ", strlen("dpt-worker: ")), 0);
}

/* Told to end while it still reads its input (here: a config without an end). */
static void expect_early_end(int number, bool full)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/pipe", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    struct process process = START(full, "--config", path, "--node-id", "a");
    const int fd = open(path, O_WRONLY | O_CLOEXEC); /* waits until the worker reads there */
    assert_true(fd >= 0);
    assert_int_equal(kill(process.pid, number), 0);
    if (full) {
        assert_int_equal(exit_code_of(&process), 0);
        close(process.fds[0]);
        close(process.fds[1]);
    } else {
        assert_int_equal(read_to_the_end(&process), 0);
        assert_string_equal(text[0], "left as asked while it was starting: nothing was trained\n");
        assert_string_equal(text[1], "");
    }
    close(fd);
    assert_int_equal(unlink(path), 0);
}

static void early_end_is_one_line(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ENDS; i++)
        expect_early_end(ends[i], false);
}

static void early_end_though_nobody_reads(void **state)
{
    (void)state;
    expect_early_end(SIGTERM, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ends_though_nobody_reads, setup_worker, teardown_worker),
        cmocka_unit_test_setup_teardown(start_is_one_line, setup_worker, teardown_worker),
        cmocka_unit_test_setup_teardown(run_is_not_named_before_it_is_known, setup_worker,
                                        teardown_worker),
        cmocka_unit_test_setup_teardown(unknown_host_is_said_though_quiet, setup_worker,
                                        teardown_worker),
        cmocka_unit_test_setup_teardown(failure_is_one_line, setup_worker, teardown_worker),
        cmocka_unit_test_setup_teardown(early_end_is_one_line, setup_worker, teardown_worker),
        cmocka_unit_test_setup_teardown(early_end_though_nobody_reads, setup_worker,
                                        teardown_worker),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
