/* Processes of dpt-bench allreduce, and the lines that drive dpt-peer-gloo. */
#include "worker/bench/bench_allreduce.h"
#include "worker/bench/programs.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ANSWER_BYTES = AR_ROUNDS_MAX * 16 };

static bool start_one(struct allreduce_team *team, int rank, allreduce_body body, void *ctx)
{
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0)
        return false;
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid < 0)
        return false;
    if (pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(to[1]);
        close(from[0]);
        for (int i = 0; i < rank; i++) { /* an open copy would keep the input of those ranks open */
            close(team->to[i]);
            close(team->from[i]);
        }
        _exit(getppid() == parent ? body(ctx, rank, to[0], from[1]) : 1);
    }
    close(to[0]);
    close(from[1]);
    team->pids[rank] = pid;
    team->to[rank] = to[1];
    team->from[rank] = from[0];
    team->n = rank + 1;
    return true;
}

bool allreduce_team_start(struct allreduce_team *team, int n, allreduce_body body, void *ctx)
{
    *team = (struct allreduce_team){.n = 0};
    for (int rank = 0; rank < n; rank++)
        if (!start_one(team, rank, body, ctx)) {
            (void)fprintf(stderr, "dpt-bench: start a process: %s\n", strerror(errno));
            return false;
        }
    return true;
}

bool allreduce_team_end(struct allreduce_team *team)
{
    bool good = true;
    for (int i = 0; i < team->n; i++) {
        close(team->to[i]);
        close(team->from[i]);
    }
    for (int i = 0; i < team->n; i++) {
        int status = 0;
        good = waitpid(team->pids[i], &status, 0) == team->pids[i] && status == 0 && good;
    }
    team->n = 0;
    return good;
}

const char *const allreduce_gloo_algorithms[] = {"ring",  "ring-chunked", "halving-doubling",
                                                 "bcube", "call-ring",    "call-bcube"};
_Static_assert(sizeof allreduce_gloo_algorithms / sizeof *allreduce_gloo_algorithms ==
                   AR_GLOO_ALGORITHMS,
               "all of them");

static const char gloo_program[] = "dpt-peer-gloo";

bool allreduce_gloo_exists(void)
{
    char path[BENCH_PATH_BYTES];
    return bench_program_find(gloo_program, path, NULL) == DPT_OK;
}

struct gloo_start {
    const char *folder;
    int n;
};

static int gloo_body(void *ctx, int rank, int in, int out)
{
    const struct gloo_start *start = ctx;
    char path[BENCH_PATH_BYTES], own[16], size[16];
    (void)snprintf(own, sizeof own, "%d", rank);
    (void)snprintf(size, sizeof size, "%d", start->n);
    if (bench_program_find(gloo_program, path, NULL) != DPT_OK || dup2(in, STDIN_FILENO) < 0 ||
        dup2(out, STDOUT_FILENO) < 0)
        return 1;
    execl(path, path, own, size, start->folder, (char *)NULL);
    return 1;
}

bool allreduce_gloo_start(struct allreduce_team *team, int n, const char *folder)
{
    struct gloo_start start = {.folder = folder, .n = n};
    return allreduce_team_start(team, n, gloo_body, &start);
}

/* Reads one line and replaces its newline by a NUL. */
static bool read_line(int fd, char *line, size_t bytes)
{
    size_t at = 0;
    while (at < bytes) {
        const ssize_t n = read(fd, line + at, bytes - at);
        if (n <= 0)
            return false;
        at += (size_t)n;
        if (line[at - 1] == '\n') {
            line[at - 1] = '\0';
            return true;
        }
    }
    return false;
}

bool allreduce_gloo_block(struct allreduce_team *team, const char *algorithm, size_t bytes,
                          const struct allreduce_block *block, double *ret_us)
{
    static char line[ANSWER_BYTES];
    bool good = true;
    const int n = snprintf(line, sizeof line, "%s %zu %d %d %d\n", algorithm, bytes, block->warmup,
                           block->rounds, block->fresh);
    for (int i = 0; i < team->n; i++)
        good = write(team->to[i], line, (size_t)n) == n && good;
    /* From the last rank to rank 0, so that the answer of rank 0 stays in `line`. */
    for (int i = team->n - 1; good && i >= 0; i--) {
        good = read_line(team->from[i], line, sizeof line) && strncmp(line, "ok", 2) == 0;
        if (!good)
            (void)fprintf(stderr, "dpt-bench allreduce: gloo %s of %zu bytes, rank %d: %.200s\n",
                          algorithm, bytes, i, line);
    }
    char *at = line + 2;
    for (int i = 0; good && i < block->rounds; i++)
        ret_us[i] = strtod(at, &at);
    return good;
}
