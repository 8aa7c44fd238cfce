/* Starts, awaits and ends the programs of benches. */
#include "worker/bench/programs.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/rng.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    POLL_NS = 2 * 1000 * 1000,
    END_TIMEOUT_MS = 10 * 1000,
    LISTEN_TIMEOUT_MS = 20 * 1000,
    LISTEN_POLL_MS = 10,
    TAIL_BYTES = 2500,
    WORKER_WORDS = 9 /* of the command line of a worker, without overrides */
};

enum dpt_status bench_program_find(const char *name, char ret[BENCH_PATH_BYTES],
                                   struct dpt_err *err)
{
    char own[BENCH_PATH_BYTES];
    const ssize_t bytes = readlink("/proc/self/exe", own, sizeof own - 1);
    if (bytes <= 0)
        return dpt_fail_errno(err, errno, "find the folder of this program");
    own[bytes] = '\0';
    *strrchr(own, '/') = '\0';
    if (snprintf(ret, BENCH_PATH_BYTES, "%s/%s", own, name) >= BENCH_PATH_BYTES)
        return dpt_fail(err, DPT_EINVAL, "the path of '%s' is too long", own);
    if (access(ret, X_OK) != 0)
        return dpt_fail(err, DPT_ENOENT, "'%s' is not there: build it too", ret);
    return DPT_OK;
}

static volatile sig_atomic_t stop_signal;

static void on_signal(int number)
{
    stop_signal = number;
}

enum dpt_status bench_programs_begin(struct dpt_err *err)
{
    const struct sigaction action = {.sa_handler = on_signal};
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return dpt_fail_errno(err, errno, "become the parent of orphans");
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGHUP, &action, NULL);
    return DPT_OK;
}

enum dpt_status bench_programs_go_on(struct dpt_err *err)
{
    return stop_signal ? dpt_fail(err, DPT_EABORTED, "ended by signal %d", (int)stop_signal)
                       : DPT_OK;
}

/* Also waits for ranks, which die a moment after their agents. */
enum dpt_status bench_programs_end(struct dpt_err *err)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    const int64_t deadline = dpt_now_ms() + END_TIMEOUT_MS;
    for (;;) {
        const pid_t reaped = waitpid(-1, NULL, WNOHANG);
        if (reaped < 0)
            return errno == ECHILD ? DPT_OK : dpt_fail_errno(err, errno, "wait for programs");
        if (reaped == 0 && dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "a process is left %d ms after all were ended",
                            END_TIMEOUT_MS);
        if (reaped == 0)
            (void)nanosleep(&poll, NULL); /* tidy: pause of a bounded poll */
    }
}

/* After fork: async-signal-safe calls only. */
static _Noreturn void run_child(char *const *argv, pid_t parent, int log)
{
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (getppid() == parent && dup2(null, 0) == 0 && dup2(log, 1) == 1 && dup2(log, 2) == 2)
        execv(argv[0], argv);
    _exit(127);
}

enum dpt_status bench_program_start(char *const *argv, const char *log, pid_t *ret,
                                    struct dpt_err *err)
{
    const int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "open '%s'", log);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0)
        run_child(argv, parent, fd);
    const int saved = errno;
    (void)close(fd);
    if (pid < 0)
        return dpt_fail_errno(err, saved, "start '%s'", argv[0]);
    (void)setpgid(pid, pid); /* the child does the same; either may run first */
    *ret = pid;
    return DPT_OK;
}

/* The port that dpt-rdzv has written to its port file; 0: none yet. */
static int server_port(const char *port_file)
{
    int port = 0;
    FILE *f = fopen(port_file, "re");
    if (f && fscanf(f, "%d", &port) != 1)
        port = 0;
    if (f)
        (void)fclose(f);
    return port;
}

enum dpt_status bench_server_start(const char *dir, const char *option, pid_t *ret_server,
                                   int *ret_port, struct dpt_err *err)
{
    char program[BENCH_PATH_BYTES], port_file[BENCH_PATH_BYTES], log[BENCH_PATH_BYTES];
    char state[BENCH_PATH_BYTES], keys[BENCH_PATH_BYTES];
    DPT_TRY(bench_program_find("dpt-rdzv", program, err));
    (void)snprintf(port_file, sizeof port_file, "%s/port", dir);
    (void)snprintf(log, sizeof log, "%s/rdzv.log", dir);
    (void)snprintf(state, sizeof state, "%s/rdzv-state-XXXXXX", dir);
    if (mkdtemp(state) == NULL) /* a new journal: a server knows nothing of an earlier one's runs */
        return dpt_fail_errno(err, errno, "make '%s'", state);
    char *const argv[] = {
        program,       "--bind",  "127.0.0.1",   "--port", "0",
        "--port-file", port_file, "--state-dir", state,    (char *)(uintptr_t)option,
        NULL};
    (void)snprintf(keys, sizeof keys, "%s/keys", dir);
    if (setenv("DPT_KEY_DIR", keys, 1) != 0)
        return dpt_fail_errno(err, errno, "name a key folder");
    (void)unlink(port_file); /* of an earlier server */
    DPT_TRY(bench_program_start(argv, log, ret_server, err));
    const int64_t deadline = dpt_now_ms() + LISTEN_TIMEOUT_MS;
    while ((*ret_port = server_port(port_file)) == 0) {
        int status = 0;
        const enum dpt_status waited =
            bench_program_wait(*ret_server, dpt_now_ms() + LISTEN_POLL_MS, &status, err);
        if (waited == DPT_OK) {
            *ret_server = 0;
            return dpt_fail(err, DPT_EPEER, "dpt-rdzv ended at its start, status 0x%x: see '%s'",
                            status, log);
        }
        if (waited != DPT_ETIMEOUT)
            return waited;
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "dpt-rdzv does not listen within %d ms: see '%s'",
                            LISTEN_TIMEOUT_MS, log);
    }
    return DPT_OK;
}

enum dpt_status bench_program_wait(pid_t pid, int64_t deadline_ms, int *ret_status,
                                   struct dpt_err *err)
{
    const struct timespec poll = {.tv_nsec = POLL_NS};
    for (;;) {
        const pid_t reaped = waitpid(pid, ret_status, WNOHANG);
        if (reaped == pid)
            return DPT_OK;
        if (reaped < 0)
            return dpt_fail_errno(err, errno, "wait for process %d", (int)pid);
        DPT_TRY(bench_programs_go_on(err));
        if (dpt_now_ms() >= deadline_ms)
            return dpt_fail(err, DPT_ETIMEOUT, "process %d has not ended in time", (int)pid);
        (void)nanosleep(&poll, NULL); /* tidy: pause of a bounded poll */
    }
}

enum dpt_status bench_worker_start(const struct bench_worker *w, pid_t *ret, struct dpt_err *err)
{
    char program[BENCH_PATH_BYTES], config[BENCH_PATH_BYTES], log[BENCH_PATH_BYTES];
    char endpoint[32], host[64];
    DPT_ASSERT(w->n_sets <= BENCH_SETS_MAX);
    DPT_TRY(bench_program_find("dpt-worker", program, err));
    (void)snprintf(config, sizeof config, "%s/config.yaml", w->dir);
    (void)snprintf(log, sizeof log, "%s/%s.log", w->dir, w->id);
    (void)snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", w->port);
    (void)snprintf(host, sizeof host, "cluster.host_group=%s", w->host);
    const char *argv[WORKER_WORDS + 2 * BENCH_SETS_MAX + 1] = {
        program,     "--config", w->config ? w->config : config,
        "--node-id", w->id,      "--rdzv-endpoint",
        endpoint,    "--set",    host};
    for (int i = 0; i < w->n_sets; i++) {
        argv[WORKER_WORDS + 2 * i] = "--set";
        argv[WORKER_WORDS + 2 * i + 1] = w->sets[i];
    }
    return bench_program_start((char *const *)(uintptr_t)argv, log, ret, err);
}

/* Node i of a cluster. */
static enum dpt_status start_node(const struct bench_cluster *c, int i, int port, pid_t *ret,
                                  struct dpt_err *err)
{
    char id[16], host[16], log_dir[BENCH_PATH_BYTES];
    (void)snprintf(id, sizeof id, "n%d", i);
    (void)snprintf(host, sizeof host, "h%d", i * c->hosts / c->nodes);
    (void)snprintf(log_dir, sizeof log_dir, "log.dir=%s/%s", c->dir, id);
    const char *sets[BENCH_SETS_MAX];
    DPT_ASSERT(c->n_sets < BENCH_SETS_MAX);
    for (int k = 0; k < c->n_sets; k++)
        sets[k] = c->sets[k];
    sets[c->n_sets] = log_dir;
    const struct bench_worker worker = {.dir = c->dir,
                                        .id = id,
                                        .host = host,
                                        .config = c->config,
                                        .sets = sets,
                                        .n_sets = c->n_sets + 1,
                                        .port = port};
    return bench_worker_start(&worker, ret, err);
}

static enum dpt_status await_node(int i, pid_t *pid, int64_t deadline_ms, struct dpt_err *err)
{
    int status = 0;
    DPT_TRY(bench_program_wait(*pid, deadline_ms, &status, err));
    *pid = 0;
    if (status == 0)
        return DPT_OK;
    return dpt_fail(err, DPT_EPEER, "worker n%d ended with %s %d", i,
                    WIFEXITED(status) ? "exit code" : "signal",
                    WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

void bench_cluster_tell(const struct bench_cluster *c)
{
    char path[BENCH_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/rdzv.log", c->dir);
    bench_program_tell(path);
    for (int i = 0; i < c->nodes; i++) {
        (void)snprintf(path, sizeof path, "%s/n%d.log", c->dir, i);
        bench_program_tell(path);
    }
}

enum dpt_status bench_cluster_run(const struct bench_cluster *c, struct dpt_err *err)
{
    pid_t server = 0, nodes[BENCH_NODES_MAX] = {0};
    int port = 0;
    struct dpt_err later; /* the first error is reported, this one is not */
    DPT_ASSERT(c->nodes <= BENCH_NODES_MAX);
    enum dpt_status status = bench_server_start(c->dir, NULL, &server, &port, err);
    for (int i = 0; status == DPT_OK && i < c->nodes; i++)
        status = start_node(c, i, port, &nodes[i], err);
    const int64_t deadline_ms = dpt_now_ms() + c->timeout_ms;
    for (int i = 0; status == DPT_OK && i < c->nodes; i++)
        status = await_node(i, &nodes[i], deadline_ms, err);
    for (int i = 0; i < c->nodes; i++)
        bench_program_kill(&nodes[i]);
    bench_program_kill(&server);
    const enum dpt_status ended = bench_programs_end(status == DPT_OK ? err : &later);
    if (status != DPT_OK)
        bench_cluster_tell(c);
    return status != DPT_OK ? status : ended;
}

void bench_program_kill(pid_t *pid)
{
    if (*pid <= 0)
        return;
    (void)kill(-*pid, SIGKILL);
    (void)waitpid(*pid, NULL, 0);
    *pid = 0;
}

enum dpt_status bench_text_write(const char *path, size_t bytes, struct dpt_err *err)
{
    const struct dpt_rng_key key = dpt_rng_key(1, DPT_RNG_TEST, 0, 0, 0);
    char *text = malloc(bytes);
    uint32_t block[4];
    int left = 0;
    if (!text)
        return dpt_fail(err, DPT_ENOMEM, "text: out of memory");
    for (size_t i = 0; i < bytes; i++) {
        dpt_philox(key, i, block);
        text[i] = left > 0 ? (char)('a' + block[0] % (1 + block[1] % 20)) : ' ';
        left = left > 0 ? left - 1 : 1 + (int)(block[2] % 6);
    }
    const enum dpt_status status = dpt_fs_write_file_atomic(path, text, bytes, err);
    free(text);
    return status;
}

void bench_program_tell(const char *log)
{
    char text[TAIL_BYTES + 1];
    FILE *f = fopen(log, "re");
    if (!f)
        return;
    if (fseek(f, -TAIL_BYTES, SEEK_END) != 0)
        rewind(f);
    text[fread(text, 1, TAIL_BYTES, f)] = '\0';
    (void)fclose(f);
    (void)fprintf(stderr, "--- %s\n%s\n", log, text);
}
