/* The processes of dpt-bench rdzv (bench_rdzv_team.h). */
#include "worker/bench/bench_rdzv_team.h"

#include "base/clock.h"
#include "rendezvous/client/client.h"
#include "worker/bench/bench_rdzv_swarm.h"
#include "worker/bench/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_NS = 1000 * 1000, NS_PER_S = 1000 * 1000 * 1000 };

/* ---- descriptors ---- */

enum dpt_status rdzv_team_check_limit(const struct rdzv_setup *setup, struct dpt_err *err)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return dpt_fail_errno(err, errno, "read the limit of descriptors");
    const int of_client = (setup->nodes + setup->clients - 1) / setup->clients;
    const rlim_t server = (rlim_t)setup->nodes + RDZV_SPARE_FDS;
    const rlim_t client = (rlim_t)of_client * DPT_CLIENT_GROUP_FDS + RDZV_SPARE_FDS;
    const rlim_t most = server > client ? server : client;
    if (limit.rlim_max != RLIM_INFINITY && limit.rlim_max < most)
        return dpt_fail(err, DPT_EUNSUPPORTED,
                        "%d nodes take %llu descriptors in dpt-rdzv and %llu in each of %d client "
                        "processes, and a process may have %llu here (ulimit -Hn): raise this "
                        "limit, or give fewer --nodes or more --clients",
                        setup->nodes, (unsigned long long)server, (unsigned long long)client,
                        setup->clients, (unsigned long long)limit.rlim_max);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return dpt_fail_errno(err, errno, "raise the limit of descriptors");
    return DPT_OK;
}

/* ---- start ---- */

static _Noreturn void run_client(struct rdzv_team *team, int client, pid_t parent, int command_fd)
{
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0; i < client; i++)
        (void)close(team->commands[i]);
    _exit(getppid() == parent ? rdzv_swarm_run(team->shared, client, command_fd) : 1);
}

static enum dpt_status start_client(struct rdzv_team *team, int client, struct dpt_err *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0)
        return dpt_fail_errno(err, errno, "open a pipe");
    (void)fflush(stdout);
    const pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        (void)close(fds[1]);
        run_client(team, client, parent, fds[0]);
    }
    const int saved = errno;
    (void)close(fds[0]);
    if (pid < 0) {
        (void)close(fds[1]);
        return dpt_fail_errno(err, saved, "start client process %d", client);
    }
    team->clients[client] = pid;
    team->commands[client] = fds[1];
    team->n_clients = client + 1;
    return DPT_OK;
}

enum dpt_status rdzv_team_start(struct rdzv_team *team, const struct rdzv_setup *setup,
                                struct dpt_err *err)
{
    const size_t bytes =
        sizeof *team->shared + (size_t)setup->nodes * sizeof team->shared->nodes[0];
    void *shared = NULL;
    int port = 0;
    *team = (struct rdzv_team){0};
    DPT_TRY(bench_programs_begin(err));
    /* A command to a client process that has just died must not end the bench without a word. */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    if (sigaction(SIGPIPE, &ignore, NULL) != 0)
        return dpt_fail_errno(err, errno, "ignore SIGPIPE");
    DPT_TRY(dpt_bench_share(bytes, &shared, err));
    team->shared = shared;
    DPT_TRY(dpt_bench_dir_create(NULL, "rdzv", team->dir, err));
    DPT_TRY(
        bench_server_start(team->dir, setup->open ? "--open" : NULL, &team->server, &port, err));
    team->shared->setup = *setup;
    (void)snprintf(team->shared->setup.endpoint, RDZV_ENDPOINT_BYTES, "127.0.0.1:%d", port);
    for (int i = 0; i < setup->clients; i++)
        DPT_TRY(start_client(team, i, err));
    return DPT_OK;
}

/* ---- end ---- */

enum dpt_status rdzv_team_end(struct rdzv_team *team, bool failed, struct dpt_err *err)
{
    char log[BENCH_PATH_BYTES];
    for (int i = 0; i < team->n_clients; i++) {
        (void)close(team->commands[i]);
        if (team->clients[i] > 0) {
            (void)kill(team->clients[i], SIGKILL);
            (void)waitpid(team->clients[i], NULL, 0);
        }
    }
    bench_program_kill(&team->server);
    const enum dpt_status status = bench_programs_end(err);
    if (team->dir[0] == '\0')
        return status;
    (void)snprintf(log, sizeof log, "%s/rdzv.log", team->dir);
    if (failed)
        bench_program_tell(log);
    dpt_bench_dir_remove(team->dir);
    return status;
}

/* ---- commands ---- */

enum dpt_status rdzv_team_command(struct rdzv_team *team, struct rdzv_command command,
                                  struct dpt_err *err)
{
    /* EPIPE: the process has ended; rdzv_team_pause says why. */
    for (int i = 0; i < team->n_clients; i++)
        if (write(team->commands[i], &command, sizeof command) < 0 && errno != EPIPE)
            return dpt_fail_errno(err, errno, "command client process %d", i);
    return DPT_OK;
}

static void print_end(int status, char *ret_text, size_t text_bytes)
{
    (void)snprintf(ret_text, text_bytes, "%s %d",
                   WIFSIGNALED(status) ? "by signal" : "with exit code",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}

/* Fails if `*pid` has ended, and sets it to 0. */
static enum dpt_status check_process(pid_t *pid, const char *name, const char *during,
                                     struct dpt_err *err)
{
    char how[32];
    int status = 0;
    const pid_t reaped = waitpid(*pid, &status, WNOHANG);
    if (reaped == 0)
        return DPT_OK;
    if (reaped < 0)
        return dpt_fail_errno(err, errno, "wait for %s", name);
    *pid = 0;
    print_end(status, how, sizeof how);
    return dpt_fail(err, DPT_EPEER, "%s ended %s during '%s'", name, how, during);
}

static enum dpt_status check_client(struct rdzv_team *team, int client, const char *during,
                                    struct dpt_err *err)
{
    const struct rdzv_client *c = &team->shared->clients[client];
    char name[32];
    (void)snprintf(name, sizeof name, "client process %d", client);
    if (__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE) != 0)
        return dpt_fail(err, DPT_EPEER, "%s, during '%s': %.800s", name, during, c->error);
    return check_process(&team->clients[client], name, during, err);
}

enum dpt_status rdzv_team_pause(struct rdzv_team *team, const char *during, struct dpt_err *err)
{
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    DPT_TRY(bench_programs_go_on(err));
    DPT_TRY(check_process(&team->server, "dpt-rdzv", during, err));
    for (int i = 0; i < team->n_clients; i++)
        DPT_TRY(check_client(team, i, during, err));
    (void)nanosleep(&pause, NULL); /* tidy: pause of a bounded poll */
    return DPT_OK;
}

/* ---- figures ---- */

struct rdzv_counts rdzv_team_counts(const struct rdzv_team *team)
{
    struct rdzv_counts sum = {0};
    for (int i = 0; i < team->n_clients; i++) {
        const struct rdzv_counts *counts = &team->shared->clients[i].counts;
        sum.sent += __atomic_load_n(&counts->sent, __ATOMIC_RELAXED);
        sum.sent_bytes += __atomic_load_n(&counts->sent_bytes, __ATOMIC_RELAXED);
        sum.received += __atomic_load_n(&counts->received, __ATOMIC_RELAXED);
        sum.received_bytes += __atomic_load_n(&counts->received_bytes, __ATOMIC_RELAXED);
        sum.beats += __atomic_load_n(&counts->beats, __ATOMIC_RELAXED);
    }
    return sum;
}

enum dpt_status rdzv_team_server_cpu_ns(const struct rdzv_team *team, int64_t *ret,
                                        struct dpt_err *err)
{
    clockid_t clock;
    struct timespec time;
    const int failed = clock_getcpuclockid(team->server, &clock);
    if (failed != 0)
        return dpt_fail_errno(err, failed, "CPU time of dpt-rdzv");
    if (clock_gettime(clock, &time) != 0)
        return dpt_fail_errno(err, errno, "CPU time of dpt-rdzv");
    *ret = (int64_t)time.tv_sec * NS_PER_S + time.tv_nsec;
    return DPT_OK;
}

enum dpt_status rdzv_team_server_memory(const struct rdzv_team *team, int64_t *ret_peak_bytes,
                                        int64_t *ret_now_bytes, struct dpt_err *err)
{
    char path[64], line[128];
    long long peak_kib = -1, now_kib = -1;
    (void)snprintf(path, sizeof path, "/proc/%d/status", (int)team->server);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return dpt_fail_errno(err, errno, "open '%s'", path);
    while (fgets(line, sizeof line, f) != NULL) {
        (void)sscanf(line, "VmHWM: %lld kB", &peak_kib);
        (void)sscanf(line, "VmRSS: %lld kB", &now_kib);
    }
    (void)fclose(f);
    if (peak_kib < 0 || now_kib < 0)
        return dpt_fail(err, DPT_EPEER, "'%s' has no memory: dpt-rdzv has ended", path);
    *ret_peak_bytes = peak_kib * 1024;
    *ret_now_bytes = now_kib * 1024;
    return DPT_OK;
}
