/* See bind.h. */
#include "worker/train/bind.h"

#include "base/log.h"
#include "base/numa.h"
#include "kernels/device.h"

/* The index of the node beside the GPU of this rank; -1: nobody knows. */
static int beside_gpu(const struct dpt_numa *numa, int local_rank, const char *sys)
{
    int count = 0;
    char bus[DPT_DEVICE_BUS_BYTES], fingerprint[DPT_FINGERPRINT_BYTES];
    struct dpt_err err; /* what is wrong with the device is said by who opens it */
    if (dpt_device_cuda_look(&count, fingerprint, &err) != DPT_OK ||
        dpt_device_cuda_bus(local_rank % count, bus, &err) != DPT_OK)
        return -1;
    const int node = dpt_numa_of_pci(sys, bus);
    for (int i = 0; i < numa->n; i++)
        if (numa->node[i] == node)
            return i;
    return -1;
}

void dpt_rank_bind(const struct dpt_rank_start *start, const struct dpt_config *config,
                   const char *sys)
{
    struct dpt_numa numa;
    struct dpt_err err;
    if (config->cluster.numa == DPT_NUMA_OFF)
        return;
    dpt_numa_read(sys, &numa);
    if (numa.n < 2)
        return;
    const bool gpu = config->cluster.device == DPT_DEVICE_CUDA;
    const int i = gpu ? beside_gpu(&numa, start->local_rank, sys)
                      : dpt_numa_deal(&numa, start->local_rank, start->ranks);
    if (i < 0)
        return;
    const int cores = CPU_COUNT(&numa.cores[i]);
    if (start->threads > cores) {
        dpt_log(DPT_LOG_INFO,
                "does not stay on NUMA node %d%s: it has %d cores, cluster.threads asks for %d",
                numa.node[i], gpu ? ", where its GPU is" : "", cores, start->threads);
        return;
    }
    if (dpt_numa_stay(&numa, i, &err) == DPT_OK)
        dpt_log(DPT_LOG_INFO, "stays on NUMA node %d%s, with %d core%s", numa.node[i],
                gpu ? ", where its GPU is" : "", cores, cores == 1 ? "" : "s");
    else
        dpt_log(DPT_LOG_WARN, "%s; it runs wherever the system puts it", err.text);
}
