/* Rank processes: no process or descriptor outlives its owner. Every wait is for a descriptor,
 * never for time. */
#include "worker/agent/process_log.h"
#include "worker/agent/rank_process.h"

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
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { WAIT_MS = 20000 };

static const char *fake_rank; /* path of the helper */
static uint8_t frame[DPT_RANK_FRAME_BYTES_MAX];

static int open_pidfd(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* Waits until a descriptor is readable (a pidfd: the process has ended). */
static void wait_readable(int fd)
{
    struct pollfd item = {.fd = fd, .events = POLLIN};
    int n;
    do
        n = poll(&item, 1, WAIT_MS);
    while (n < 0 && errno == EINTR);
    assert_int_equal(n, 1);
}

static struct dpt_rank_start make_start(void)
{
    struct dpt_rank_start start = {.incarnation = 7,
                                   .local_rank = 1,
                                   .ranks = 2,
                                   .spawn = 3,
                                   .threads = 4,
                                   .agent = getpid(),
                                   .log_level = 1,
                                   .n_allow = 1,
                                   .allow_fresh = true,
                                   .claim_number = 8,
                                   .claim_token = "0123456789abcdef0123456789abcdef"};
    (void)snprintf(start.node, sizeof start.node, "node-a");
    (void)snprintf(start.address, sizeof start.address, "::1");
    (void)snprintf(start.data, sizeof start.data, "0123456789abcdef0123456789abcdef");
    (void)snprintf(start.data_stamp, sizeof start.data_stamp, "%032d", 1);
    (void)snprintf(start.val, sizeof start.val, "%032d", 2);
    (void)snprintf(start.val_stamp, sizeof start.val_stamp, "%032d", 3);
    (void)snprintf(start.allow[0], sizeof start.allow[0], "optimizer.lr");
    return start;
}

static enum dpt_status spawn(const char *program, const char *what, struct dpt_rank_process *ret,
                             struct dpt_err *err)
{
    static const char config[] = "run: test\n";
    struct dpt_rank_start start = make_start();
    const struct dpt_rank_process_options options = {program, &start, config, sizeof config - 1};
    (void)setenv("DPT_FAKE_RANK", what, 1);
    return dpt_rank_process_start(&options, ret, err);
}

static struct dpt_rank_process spawn_fake(const char *what)
{
    struct dpt_rank_process process;
    struct dpt_err err;
    if (spawn(fake_rank, what, &process, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return process;
}

static size_t hear(const struct dpt_rank_process *process)
{
    struct dpt_err err;
    size_t bytes = 0;
    assert_int_equal(dpt_rank_link_recv(process->link_fd, WAIT_MS, frame, &bytes, &err), DPT_OK);
    return bytes;
}

static void expect_frame(const struct dpt_rank_process *process, const char *text)
{
    size_t bytes = hear(process);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(frame, text, bytes);
}

static void send_command_text(const struct dpt_rank_process *process, const char *text)
{
    struct dpt_err err;
    assert_int_equal(dpt_rank_link_send(process->link_fd, text, strlen(text), &err), DPT_OK);
}

static int reap(struct dpt_rank_process *process)
{
    int code = 12345;
    wait_readable(process->pid_fd);
    assert_true(dpt_rank_process_ended(process));
    assert_true(dpt_rank_process_reap(process, &code));
    assert_int_equal(process->pid, 0);
    dpt_rank_process_fini(process);
    return code;
}

static void test_link_end_ends_rank(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("obey");
    int ignored;
    expect_frame(&process, "ready");
    assert_false(dpt_rank_process_ended(&process));
    assert_false(dpt_rank_process_reap(&process, &ignored));
    send_command_text(&process, "hello");
    expect_frame(&process, "hello");
    close(process.link_fd);
    process.link_fd = -1;
    assert_int_equal(reap(&process), 0);
}

/* What a rank kept is there when it is dead, until it is forgotten. */
static void test_newest_step(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("step");
    int code;
    expect_frame(&process, "ready");
    assert_int_equal(dpt_rank_process_step(&process), 42);
    dpt_rank_process_kill(&process);
    wait_readable(process.pid_fd);
    assert_true(dpt_rank_process_reap(&process, &code));
    assert_int_equal(dpt_rank_process_step(&process), 42);
    dpt_rank_process_forget_step(&process);
    assert_int_equal(dpt_rank_process_step(&process), 0);
    dpt_rank_process_fini(&process);
    process = spawn_fake("obey");
    assert_int_equal(dpt_rank_process_step(&process), 0);
    dpt_rank_process_kill(&process);
    assert_int_equal(reap(&process), -SIGKILL);
}

static void test_sigterm_is_ignored(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("stubborn");
    expect_frame(&process, "ready");
    assert_int_equal(kill(-process.pid, SIGTERM), 0);
    assert_int_equal(kill(-process.pid, SIGINT), 0);
    send_command_text(&process, "still there");
    expect_frame(&process, "still there");
    dpt_rank_process_kill(&process);
    assert_int_equal(reap(&process), -SIGKILL);
}

static void test_own_process_group(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("obey");
    expect_frame(&process, "ready");
    assert_int_equal(getpgid(process.pid), process.pid);
    dpt_rank_process_kill(&process);
    assert_int_equal(reap(&process), -SIGKILL);
}

static void test_grandchildren_die_with_the_rank(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("children");
    pid_t children[2];
    assert_int_equal(hear(&process), sizeof children);
    memcpy(children, frame, sizeof children);
    int fds[2] = {open_pidfd(children[0]), open_pidfd(children[1])};
    assert_true(fds[0] >= 0 && fds[1] >= 0);
    send_command_text(&process, "go");
    assert_int_equal(reap(&process), 3);
    wait_readable(fds[0]); /* in its group */
    (void)dpt_orphans_kill(NULL, 0);
    wait_readable(fds[1]); /* in a separate session, adopted by this process */
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
    close(fds[0]);
    close(fds[1]);
}

static void test_orphans_spare_ranks(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("obey");
    expect_frame(&process, "ready");
    assert_int_equal(dpt_orphans_kill(&process.pid, 1), 0);
    send_command_text(&process, "alive");
    expect_frame(&process, "alive");
    dpt_rank_process_kill(&process);
    assert_int_equal(reap(&process), -SIGKILL);
}

static void test_closed_link_is_noticed(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("close");
    struct dpt_err err;
    size_t bytes;
    expect_frame(&process, "ready");
    assert_int_equal(dpt_rank_link_recv(process.link_fd, WAIT_MS, frame, &bytes, &err), DPT_EPEER);
    assert_false(dpt_rank_process_ended(&process));
    dpt_rank_process_kill(&process);
    assert_int_equal(reap(&process), -SIGKILL);
}

static void test_killed_rank(void **state)
{
    (void)state;
    struct dpt_rank_process process = spawn_fake("die");
    assert_int_equal(reap(&process), -SIGKILL);
}

/* A separate agent process is killed: the kernel kills its rank, which ignores its link. */
static void test_killed_agent_takes_rank_along(void **state)
{
    (void)state;
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    pid_t agent = fork();
    assert_true(agent >= 0);
    if (agent == 0) {
        struct dpt_rank_process process;
        struct dpt_err err;
        size_t bytes;
        bool ok = spawn(fake_rank, "stubborn", &process, &err) == DPT_OK &&
                  dpt_rank_link_recv(process.link_fd, WAIT_MS, frame, &bytes, &err) == DPT_OK &&
                  write(pipe_fds[1], &process.pid, sizeof process.pid) == sizeof process.pid;
        if (!ok)
            _exit(1);
        for (;;)
            pause();
    }
    pid_t rank = 0;
    wait_readable(pipe_fds[0]);
    assert_int_equal(read(pipe_fds[0], &rank, sizeof rank), sizeof rank);
    int rank_fd = open_pidfd(rank);
    assert_true(rank_fd >= 0);
    assert_int_equal(kill(agent, SIGKILL), 0);
    assert_int_equal(waitpid(agent, NULL, 0), agent);
    wait_readable(rank_fd);
    assert_int_equal(waitpid(rank, NULL, 0), rank); /* adopted by us */
    close(rank_fd);
    close(pipe_fds[0]);
    close(pipe_fds[1]);
}

static void test_descriptors_of_a_rank(void **state)
{
    (void)state;
    int leaked = open("/dev/null", O_RDONLY); /* some library's, without O_CLOEXEC */
    assert_true(leaked >= 0);
    struct dpt_rank_process process = spawn_fake("fds");
    expect_frame(&process, "0 1 2 3 4 5 ");
    assert_int_equal(reap(&process), 0);
    close(leaked);
}

static void test_program_that_is_not_there(void **state)
{
    (void)state;
    struct dpt_rank_process process;
    struct dpt_err err;
    assert_int_equal(spawn("/nonexistent/rank", "obey", &process, &err), DPT_ENOENT);
    assert_non_null(strstr(err.text, "/nonexistent/rank"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_no_descriptors_are_left(void **state)
{
    (void)state;
    struct rlimit limit, low;
    struct dpt_rank_process process;
    struct dpt_err err;
    char said[32];
    const int free_fd = dup(STDIN_FILENO);
    assert_true(free_fd >= 0);
    assert_int_equal(close(free_fd), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    low = limit;
    low.rlim_cur = (rlim_t)free_fd + 3; /* the link, and half a pipe */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    assert_int_equal(spawn(fake_rank, "obey", &process, &err), DPT_EOVERFLOW);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    (void)snprintf(said, sizeof said, "all %d files", free_fd + 3);
    assert_non_null(strstr(err.text, said));
    assert_non_null(strstr(err.text, "ulimit -n"));
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_wrong_parent(void **state)
{
    (void)state;
    struct dpt_rank_start start = make_start();
    struct dpt_err err;
    start.agent = getpid(); /* ours, not our parent's */
    assert_int_equal(dpt_rank_start_enter(&start, &err), DPT_EPEER);
    (void)prctl(PR_SET_PDEATHSIG, 0);
}

static void test_arguments_round_trip(void **state)
{
    (void)state;
    static struct dpt_rank_args args;
    struct dpt_rank_start start = make_start(), back;
    struct dpt_err err;
    dpt_rank_start_encode(&start, "dpt-worker", &args);
    int argc = 0;
    while (args.argv[argc] != NULL)
        argc++;
    assert_int_equal(dpt_rank_start_decode(argc, args.argv, &back, &err), DPT_OK);
    assert_memory_equal(&back, &start, sizeof start);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    static char *bad[][4] = {
        {"dpt-worker", "--config", "x", NULL},
        {"dpt-worker", "--rank", "node", NULL},
        {"dpt-worker", "--rank", "colour=red", NULL},
        {"dpt-worker", "--rank", "spawn=0", NULL},
        {"dpt-worker", "--rank", "threads=2x", NULL},
        {"dpt-worker", "--rank", "threads=-1", NULL},
        {"dpt-worker", "--rank", "node=", NULL},
        {"dpt-worker", "--rank", "local_rank=-1", NULL},
        {"dpt-worker", "--rank", "node=a", NULL},
        {"dpt-worker", "--rank", "incarnation=-1", NULL},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct dpt_rank_start start;
        struct dpt_err err;
        assert_int_equal(dpt_rank_start_decode(3, bad[i], &start, &err), DPT_EINVAL);
    }
}

static void test_largest_frame_passes(void **state)
{
    (void)state;
    int fds[2];
    struct dpt_err err;
    size_t bytes = 0;
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    memset(frame, 'x', sizeof frame);
    assert_int_equal(dpt_rank_link_send(fds[0], frame, sizeof frame, &err), DPT_OK);
    assert_int_equal(dpt_rank_link_recv(fds[1], 0, frame, &bytes, &err), DPT_OK);
    assert_int_equal(bytes, sizeof frame);
    assert_int_equal(dpt_rank_link_recv(fds[1], 0, frame, &bytes, &err), DPT_INPROGRESS);
    assert_int_equal(dpt_rank_link_send(fds[0], frame, sizeof frame + 1, &err), DPT_EOVERFLOW);
    assert_int_equal(dpt_rank_link_send(fds[0], frame, 0, &err), DPT_EOVERFLOW);
    enum dpt_status status = DPT_OK;
    for (int i = 0; i < 10000 && status == DPT_OK; i++) /* no reader */
        status = dpt_rank_link_send(fds[0], frame, sizeof frame, &err);
    assert_int_equal(status, DPT_INPROGRESS);
    close(fds[1]);
    assert_int_equal(dpt_rank_link_send(fds[0], frame, 1, &err), DPT_EPEER);
    close(fds[0]);
}

/* The last message of a side that closes arrives, though that side never read its own messages. */
static void test_last_words_of_an_end_that_did_not_read(void **state)
{
    (void)state;
    int fds[2];
    struct dpt_err err;
    size_t bytes = 0;
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    assert_int_equal(dpt_rank_link_send(fds[0], "go", 2, &err), DPT_OK);
    assert_int_equal(dpt_rank_link_send(fds[1], "last words", 10, &err), DPT_OK);
    assert_int_equal(close(fds[1]), 0);
    assert_int_equal(dpt_rank_link_recv(fds[0], 0, frame, &bytes, &err), DPT_OK);
    assert_int_equal(bytes, 10);
    assert_memory_equal(frame, "last words", 10);
    assert_int_equal(dpt_rank_link_recv(fds[0], 0, frame, &bytes, &err), DPT_EPEER);
    assert_int_equal(close(fds[0]), 0);
}

/* A frame longer than allowed, from a sender that does not keep to the rule. */
static void test_oversized_frame(void **state)
{
    (void)state;
    int fds[2];
    struct dpt_err err;
    size_t bytes = 0;
    assert_int_equal(dpt_rank_link_pair(fds, &err), DPT_OK);
    char *big = calloc(1, DPT_RANK_FRAME_BYTES_MAX + 1);
    assert_non_null(big);
    assert_int_equal(send(fds[0], big, DPT_RANK_FRAME_BYTES_MAX + 1, MSG_DONTWAIT),
                     DPT_RANK_FRAME_BYTES_MAX + 1);
    assert_int_equal(dpt_rank_link_recv(fds[1], 0, frame, &bytes, &err), DPT_EPROTO);
    assert_int_equal(dpt_rank_link_recv(fds[1], 0, frame, &bytes, &err), DPT_INPROGRESS);
    free(big);
    close(fds[0]);
    close(fds[1]);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    fake_rank = argv[1];
    struct dpt_err err;
    if (dpt_orphans_adopt(&err) != DPT_OK)
        return 2;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link_end_ends_rank),
        cmocka_unit_test(test_newest_step),
        cmocka_unit_test(test_sigterm_is_ignored),
        cmocka_unit_test(test_own_process_group),
        cmocka_unit_test(test_grandchildren_die_with_the_rank),
        cmocka_unit_test(test_orphans_spare_ranks),
        cmocka_unit_test(test_closed_link_is_noticed),
        cmocka_unit_test(test_killed_rank),
        cmocka_unit_test(test_killed_agent_takes_rank_along),
        cmocka_unit_test(test_descriptors_of_a_rank),
        cmocka_unit_test(test_program_that_is_not_there),
        cmocka_unit_test(test_no_descriptors_are_left),
        cmocka_unit_test(test_wrong_parent),
        cmocka_unit_test(test_arguments_round_trip),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_largest_frame_passes),
        cmocka_unit_test(test_last_words_of_an_end_that_did_not_read),
        cmocka_unit_test(test_oversized_frame),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
