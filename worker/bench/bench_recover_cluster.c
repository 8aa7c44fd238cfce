/* Starts, ends and reaps the programs of the recovery bench's cluster. */
#include "worker/bench/bench_recover_cluster.h"

#include "base/clock.h"
#include "base/fs.h"
#include "base/hash.h"
#include "checkpoint/checkpoint.h"
#include "worker/bench/programs.h"

#include <fcntl.h>
#include <glob.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
    TEXT_BYTES = 200 * 1000,
    ENDLESS_STEPS = 100 * 1000 * 1000,
    KILL_MS = 5000, /* to wait after SIGKILL */
    LOG_END_BYTES = 32 * 1024,
    CHILDREN_BYTES = 256
};

void recover_pause(void)
{
    struct timespec poll = {.tv_nsec = 2 * 1000 * 1000};
    (void)nanosleep(&poll, NULL); /* tidy: pause of a bounded poll */
}

/* ---- files ---- */

/* Writes the config of the run with faults (`calm` 0), or of the run without faults, of `calm`
 * steps. The learning rate is constant, so the number of steps changes no result. */
static enum dpt_status write_config(const struct recover_cluster *c, int64_t calm,
                                    struct dpt_err *err)
{
    const struct recover_run *run = &c->run;
    char yaml[2048], strategy[256], path[REC_PATH_BYTES];
    const char *below = calm > 0 ? "calm" : "log";
    recover_strategy_yaml(run->strategy, run->rebuild_mib, strategy, sizeof strategy);
    int bytes = snprintf(
        yaml, sizeof yaml,
        "run: recover\n"
        "cluster: {nnodes: \"1:%d\", gpus_per_node: %d, device: %s, threads: %d, timeout_s: %g, "
        "max_restarts: 1000}\n"
        "model: {name: gpt2, n_layer: 2, n_head: 4, n_embd: %d, context: 32, vocab: 256}\n"
        "data: {kind: text, train: \"%s/text.txt\", tokenizer: bytes}\n"
        "train: {steps: %lld, global_batch: %d, micro_batch: 2, seq_len: 32, precision: fp32, "
        "log_every: 1}\n"
        "optimizer: {name: adamw, lr: 1.0e-3, schedule: constant}\n"
        "strategy: %s\n"
        "checkpoint: {dir: \"%s/%s/checkpoints\", every_steps: 0}\n"
        "log: {dir: \"%s/%s\"}\n",
        run->nodes_max, calm > 0 ? 1 : run->strategy->ranks_per_node, run->cuda ? "cuda" : "cpu",
        calm > 0 ? 2 : 1, run->timeout_s, run->n_embd, c->dir,
        (long long)(calm > 0 ? calm : ENDLESS_STEPS), 2 * REC_SLOTS, strategy, c->dir, below,
        c->dir, below);
    DPT_ASSERT(bytes > 0 && (size_t)bytes < sizeof yaml);
    DPT_TRY(dpt_fs_join(c->dir, "config.yaml", path, sizeof path, err));
    return dpt_fs_write_file_atomic(path, yaml, (size_t)bytes, err);
}

enum dpt_status recover_cluster_create(const struct recover_run *run, struct recover_cluster *ret,
                                       struct dpt_err *err)
{
    char path[REC_PATH_BYTES];
    *ret = (struct recover_cluster){.run = *run};
    DPT_TRY(dpt_bench_dir_create(NULL, "recover", ret->dir, err));
    DPT_TRY(dpt_fs_join(ret->dir, "text.txt", path, sizeof path, err));
    DPT_TRY(bench_text_write(path, TEXT_BYTES, err));
    return write_config(ret, 0, err);
}

/* ---- processes ---- */

/* Sets the environment of the node that is started next, so that several ranks can use one GPU.
 * NCCL accepts them if each node claims to be a separate machine, connected by sockets alone.
 * DPT_TEST_SHARE_GPUS does the same for the ranks of one node. */
static void seem_apart(const char *node)
{
    static const char *const how[][2] = {{"NCCL_NET", "Socket"},    {"NCCL_SOCKET_IFNAME", "lo"},
                                         {"NCCL_IB_DISABLE", "1"},  {"NCCL_P2P_DISABLE", "1"},
                                         {"NCCL_SHM_DISABLE", "1"}, {"NCCL_NVLS_ENABLE", "0"},
                                         {"NCCL_RAS_ENABLE", "0"},  {"NCCL_MAX_CTAS", "2"}};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++)
        (void)setenv(how[i][0], how[i][1], 1);
    (void)setenv("NCCL_HOSTID", node, 1);
    (void)setenv("DPT_TEST_SHARE_GPUS", "1", 1);
}

enum dpt_status recover_node_start(struct recover_cluster *c, struct recover_node **ret,
                                   struct dpt_err *err)
{
    struct recover_node *node = NULL;
    for (int i = 0; i < REC_NODES_MAX && !node; i++)
        if (c->nodes[i].pid == 0)
            node = &c->nodes[i];
    DPT_ASSERT(node);
    struct recover_node made = {0};
    (void)snprintf(made.id, sizeof made.id, "n%d", ++c->started);
    if (c->run.cuda)
        seem_apart(made.id);
    const struct bench_worker worker = {
        .dir = c->dir, .id = made.id, .host = c->run.one_host ? "one" : made.id, .port = c->port};
    DPT_TRY(bench_worker_start(&worker, &made.pid, err));
    *node = made;
    *ret = node;
    return DPT_OK;
}

/* True: the process is the rank `local`. A child that has not reached exec yet is no rank. */
static bool is_rank(pid_t pid, int local)
{
    char path[64], line[512] = {0}, wanted[32];
    (void)snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    (void)snprintf(wanted, sizeof wanted, "local_rank=%d", local);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t bytes = read(fd, line, sizeof line - 1);
    (void)close(fd);
    bool rank = false;
    int at = 0;
    for (const char *arg = line; arg < line + bytes; arg += strlen(arg) + 1, at++) {
        rank = rank || (at == 1 && strcmp(arg, "--rank") == 0);
        if (rank && strcmp(arg, wanted) == 0)
            return true;
    }
    return false;
}

pid_t recover_node_rank(const struct recover_node *node, int local)
{
    /* The agent's main thread starts the ranks. */
    char path[64], line[CHILDREN_BYTES] = {0};
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)node->pid, (int)node->pid);
    FILE *f = node->pid > 0 && !node->ended ? fopen(path, "re") : NULL;
    if (!f)
        return 0;
    const char *children = fgets(line, sizeof line, f);
    (void)fclose(f);
    char *end;
    for (long pid; children && (pid = strtol(children, &end, 10)) > 0; children = end)
        if (is_rank((pid_t)pid, local))
            return (pid_t)pid;
    return 0;
}

int recover_node_place(const struct recover_cluster *c, const struct recover_node *node, int local)
{
    char path[REC_PATH_BYTES], text[LOG_END_BYTES + 1];
    (void)snprintf(path, sizeof path, "%s/log/node-%s/rank-%d.log", c->dir, node->id, local);
    FILE *f = fopen(path, "re");
    if (!f)
        return -1;
    if (fseek(f, -LOG_END_BYTES, SEEK_END) != 0)
        rewind(f);
    text[fread(text, 1, LOG_END_BYTES, f)] = '\0';
    (void)fclose(f);
    int place = -1, rank, world;
    char n; /* the line is of log_plan, worker/train/formation/form.c */
    for (const char *at = text; (at = strstr(at, ": rank ")); at++)
        if (sscanf(at, ": rank %d of %d continue%c", &rank, &world, &n) == 3 && n == 's')
            place = rank;
    return place;
}

static struct recover_node *node_of(struct recover_cluster *c, pid_t pid)
{
    for (int i = 0; i < REC_NODES_MAX; i++)
        if (c->nodes[i].pid == pid)
            return &c->nodes[i];
    return NULL;
}

enum dpt_status recover_cluster_reap(struct recover_cluster *c, struct dpt_err *err)
{
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        struct recover_node *node = node_of(c, pid);
        if (pid == c->server) {
            c->server = 0;
            return dpt_fail(err, DPT_EPEER, "dpt-rdzv ended by itself, status 0x%x", status);
        }
        if (!node)
            continue; /* an orphan: the rank of an agent that was killed */
        node->ended = true;
        node->status = status;
        if (!node->stops)
            return dpt_fail(err, DPT_EPEER, "worker %s ended by itself, %s %d", node->id,
                            WIFEXITED(status) ? "exit code" : "signal",
                            WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    }
    return DPT_OK;
}

bool recover_node_gone(struct recover_node *node, int *ret_status)
{
    if (!node->ended)
        return false;
    *ret_status = node->status;
    *node = (struct recover_node){0};
    return true;
}

/* ---- the end ---- */

/* Sends `number` to the nodes that have not ended, or to their process groups. */
static void signal_all(const struct recover_cluster *c, int number, bool groups)
{
    for (int i = 0; i < REC_NODES_MAX; i++)
        if (c->nodes[i].pid > 0 && !c->nodes[i].ended)
            (void)kill(groups ? -c->nodes[i].pid : c->nodes[i].pid, number);
}

static bool nodes_left(const struct recover_cluster *c)
{
    for (int i = 0; i < REC_NODES_MAX; i++)
        if (c->nodes[i].pid > 0 && !c->nodes[i].ended)
            return true;
    return false;
}

static enum dpt_status end_nodes(struct recover_cluster *c, struct dpt_err *err)
{
    int64_t deadline = dpt_now_ms() + REC_EXIT_MS;
    for (int i = 0; i < REC_NODES_MAX; i++)
        c->nodes[i].stops = true;
    signal_all(c, SIGTERM, false);
    while (nodes_left(c)) {
        DPT_TRY(recover_cluster_reap(c, err));
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "workers did not end within %d ms of SIGTERM",
                            REC_EXIT_MS);
        recover_pause();
    }
    for (int i = 0; i < REC_NODES_MAX; i++)
        if (c->nodes[i].pid > 0 && c->nodes[i].status != 0)
            return dpt_fail(err, DPT_EPEER, "worker %s ended with status 0x%x after SIGTERM",
                            c->nodes[i].id, c->nodes[i].status);
    memset(c->nodes, 0, sizeof c->nodes);
    return DPT_OK;
}

static enum dpt_status end_server(struct recover_cluster *c, struct dpt_err *err)
{
    int64_t deadline = dpt_now_ms() + REC_EXIT_MS;
    int status = 0;
    (void)kill(c->server, SIGTERM);
    while (waitpid(c->server, &status, WNOHANG) == 0) {
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_ETIMEOUT, "dpt-rdzv did not end within %d ms of SIGTERM",
                            REC_EXIT_MS);
        recover_pause();
    }
    c->server = 0;
    return status == 0
               ? DPT_OK
               : dpt_fail(err, DPT_EPEER, "dpt-rdzv ended with status 0x%x after SIGTERM", status);
}

static bool is_process_left(void)
{
    pid_t pid;
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) /* an orphan that this process adopted */
        continue;
    return pid == 0;
}

/* With a GPU a killed process exists until the driver has freed its GPU memory, and its agent does
 * not wait for that: this function waits. */
enum dpt_status recover_cluster_end(struct recover_cluster *c, struct dpt_err *err)
{
    DPT_TRY(end_nodes(c, err));
    DPT_TRY(end_server(c, err));
    const int64_t deadline = dpt_now_ms() + (c->run.cuda ? REC_EXIT_MS : 0);
    while (is_process_left()) {
        if (dpt_now_ms() >= deadline)
            return dpt_fail(err, DPT_EPEER, "a process is left after every program has ended");
        recover_pause();
    }
    return DPT_OK;
}

void recover_cluster_destroy(struct recover_cluster *c, bool keep)
{
    int64_t deadline = dpt_now_ms() + KILL_MS;
    if (c->server > 0)
        (void)kill(c->server, SIGKILL);
    signal_all(c, SIGKILL, true);
    /* Ranks die with their agents. This process adopts and reaps those whose agents are already
     * dead. */
    for (pid_t pid = 0; pid >= 0 && dpt_now_ms() < deadline;)
        if ((pid = waitpid(-1, NULL, WNOHANG)) == 0)
            recover_pause();
    if (c->dir[0] && keep)
        (void)fprintf(stderr, "dpt-bench recover: kept '%s'\n", c->dir);
    else if (c->dir[0])
        dpt_bench_dir_remove(c->dir);
    *c = (struct recover_cluster){0};
}

/* ---- results ---- */

enum dpt_status recover_cluster_saved(const struct recover_cluster *c, int64_t *ret_step,
                                      char ret_hash[REC_HASH_BYTES], struct dpt_err *err)
{
    char path[REC_PATH_BYTES];
    int64_t step = -1;
    struct dpt_checkpoint *checkpoint = NULL;
    struct dpt_hash128 hash;
    DPT_TRY(dpt_fs_join(c->dir, "log/checkpoints", path, sizeof path, err));
    DPT_TRY(dpt_checkpoint_newest(path, &step, err));
    if (step < 0)
        return dpt_fail(err, DPT_ENOENT, "no complete checkpoint in '%s'", path);
    DPT_TRY(dpt_checkpoint_open(path, step, &checkpoint, err));
    enum dpt_status status = dpt_checkpoint_hash(checkpoint, &hash, err);
    dpt_checkpoint_close(&checkpoint);
    DPT_TRY(status);
    dpt_hash128_hex(hash, ret_hash);
    *ret_step = step;
    return DPT_OK;
}

static int64_t count_lines_with(const char *path, const char *text)
{
    char *line = NULL;
    size_t room = 0;
    int64_t count = 0;
    FILE *f = fopen(path, "re");
    while (f && getline(&line, &room, f) > 0)
        count += strstr(line, text) != NULL;
    free(line);
    if (f)
        (void)fclose(f);
    return count;
}

int64_t recover_cluster_count(const struct recover_cluster *c, const char *text)
{
    char pattern[REC_PATH_BYTES];
    glob_t found;
    int64_t count = 0;
    (void)snprintf(pattern, sizeof pattern, "%s/log/node-*/rank-*.log", c->dir);
    if (glob(pattern, 0, NULL, &found) != 0)
        return 0;
    for (size_t i = 0; i < found.gl_pathc; i++)
        count += count_lines_with(found.gl_pathv[i], text);
    globfree(&found);
    return count;
}

enum dpt_status recover_calm_start(struct recover_cluster *c, int64_t steps, struct dpt_err *err)
{
    DPT_TRY(write_config(c, steps, err));
    return bench_server_start(c->dir, NULL, &c->server, &c->port, err);
}

enum dpt_status recover_calm_hash(const struct recover_cluster *c, char ret[REC_HASH_BYTES],
                                  struct dpt_err *err)
{
    char path[REC_PATH_BYTES];
    DPT_TRY(dpt_fs_join(c->dir, "calm/summary.json", path, sizeof path, err));
    json_t *summary = json_load_file(path, 0, NULL);
    const char *hash = json_string_value(json_object_get(summary, "weights_hash"));
    (void)snprintf(ret, REC_HASH_BYTES, "%s", hash ? hash : "");
    json_decref(summary);
    return ret[0] ? DPT_OK : dpt_fail(err, DPT_ENOENT, "no weights_hash in '%s'", path);
}

void recover_cluster_tell(const struct recover_cluster *c)
{
    char path[REC_PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/rdzv.log", c->dir);
    bench_program_tell(path);
    for (int i = 0; i < REC_NODES_MAX; i++) {
        if (c->nodes[i].pid == 0)
            continue;
        (void)snprintf(path, sizeof path, "%s/%s.log", c->dir, c->nodes[i].id);
        bench_program_tell(path);
    }
}
