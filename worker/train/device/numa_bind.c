/* The binding of a rank to the cores of a NUMA node. */
#include "worker/train/device/rank_device.h"

#include "base/cores.h"
#include "base/log.h"
#include "base/numa.h"
#include "rendezvous/proto/message.h"

/* Index of the NUMA node of a local rank's GPU; -1: unknown. */
static int node_of_gpu(const struct dpt_numa *numa, int local_rank, int gpus, const char *sys)
{
    char bus[DPT_DEVICE_BUS_BYTES];
    struct dpt_err err; /* not reported: opening the device reports the error */
    if (dpt_device_cuda_bus(local_rank % gpus, bus, &err) != DPT_OK)
        return -1;
    const int node = dpt_numa_of_pci(sys, bus);
    for (int i = 0; i < numa->n; i++)
        if (numa->node[i] == node)
            return i;
    return -1;
}

/* Calls node_of_gpu for all local ranks. */
static void find_nodes_of_gpus(const struct dpt_numa *numa, int ranks, const char *sys, int *ret)
{
    int gpus = 0;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    struct dpt_err err;
    const bool there = dpt_device_cuda_look(&gpus, fingerprint, &err) == DPT_OK;
    for (int r = 0; r < ranks; r++)
        ret[r] = there ? node_of_gpu(numa, r, gpus, sys) : -1;
}

void dpt_rank_bind_numa(const struct dpt_rank_start *start, const struct dpt_config *config,
                        const char *sys)
{
    struct dpt_numa numa;
    struct dpt_err err;
    int beside[DPT_PROTO_RANKS_MAX];
    if (config->cluster.numa == DPT_NUMA_OFF)
        return;
    dpt_numa_read(sys, &numa);
    if (numa.n < 2)
        return;
    const bool gpu = config->cluster.device == DPT_DEVICE_CUDA;
    if (gpu)
        find_nodes_of_gpus(&numa, start->ranks, sys, beside);
    for (int r = 0; !gpu && r < start->ranks; r++)
        beside[r] = dpt_numa_assign(&numa, r, start->ranks);
    const int i = beside[start->local_rank];
    if (i < 0 || !dpt_numa_is_even(&numa, beside, start->ranks, start->threads, dpt_cores()))
        return;
    const int cores = CPU_COUNT(&numa.cores[i]);
    if (dpt_numa_stay(&numa, i, &err) == DPT_OK)
        dpt_log(DPT_LOG_INFO, "stays on NUMA node %d%s, with %d core%s", numa.node[i],
                gpu ? ", where its GPU is" : "", cores, cores == 1 ? "" : "s");
    else
        dpt_log(DPT_LOG_WARN, "%s; the system chooses its cores", err.text);
}
