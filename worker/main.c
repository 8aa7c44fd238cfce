/* The program dpt-worker. With --rank it is a rank process, which a node agent has started;
 * otherwise it is a node agent. */
#include "base/log.h"
#include "worker/agent/core.h"
#include "worker/agent/rank_protocol.h"
#include "worker/agent/worker.h"
#include "worker/train/rank.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* For tests with DPT_TEST_SHARE_GPUS: NCCL lets the ranks of one node share a GPU if each rank
 * names another host (NCCL_HOSTID). */
static void set_nccl_host(const struct dpt_rank_start *start)
{
    const char *machine = getenv("NCCL_HOSTID");
    char own[128];
    if (!getenv("DPT_TEST_SHARE_GPUS"))
        return;
    (void)snprintf(own, sizeof own, "%s-%d", machine ? machine : "rank", start->local_rank);
    (void)setenv("NCCL_HOSTID", own, 1);
}

static int run_rank(int argc, char **argv)
{
    struct dpt_rank_start start;
    static struct dpt_config config;
    struct dpt_err err;
    enum dpt_status status = dpt_rank_start_decode(argc, argv, &start, &err);
    if (status == DPT_OK)
        status = dpt_rank_start_enter(&start, &err);
    if (status == DPT_OK)
        status = dpt_rank_start_config(DPT_RANK_FD_CONFIG, &config, &err);
    if (status == DPT_OK) {
        set_nccl_host(&start);
        return dpt_rank_main(&start, &config);
    }
    (void)fprintf(stderr, "dpt-worker: %s\n", err.text);
    return DPT_EXIT_CONFIG;
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "--rank") == 0)
        return run_rank(argc, argv);
    return dpt_worker_run(argc, argv, NULL);
}
