/* NUMA nodes (numa.h): /sys/devices/system/node/nodeN/cpulist and
 * /sys/bus/pci/devices/ID/numa_node. */
#include "base/numa.h"

#include "base/fs.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 512, LIST_BYTES = 4096 };

bool dpt_numa_parse_cores(const char *text, cpu_set_t *ret)
{
    CPU_ZERO(ret);
    while (*text) {
        char *end;
        if (!isdigit((unsigned char)*text))
            return false;
        const unsigned long first = strtoul(text, &end, 10);
        unsigned long last = first;
        if (*end == '-') {
            if (!isdigit((unsigned char)end[1]))
                return false;
            last = strtoul(end + 1, &end, 10);
        }
        if (last < first || last >= CPU_SETSIZE || (*end != ',' && *end != '\0') ||
            (*end == ',' && end[1] == '\0'))
            return false;
        for (unsigned long core = first; core <= last; core++)
            CPU_SET(core, ret);
        text = *end == ',' ? end + 1 : end;
    }
    return true;
}

void dpt_numa_read(const char *sys, struct dpt_numa *ret)
{
    cpu_set_t mine;
    ret->n = 0;
    if (sched_getaffinity(0, sizeof mine, &mine) != 0)
        return; /* more cores than a cpu_set_t holds */
    for (int node = 0; node < DPT_NUMA_NODES_MAX; node++) {
        char path[PATH_BYTES], list[LIST_BYTES];
        cpu_set_t cores;
        (void)snprintf(path, sizeof path, "%s/devices/system/node/node%d/cpulist", sys, node);
        if (!dpt_fs_read_line(path, list, sizeof list) || !dpt_numa_parse_cores(list, &cores))
            continue;
        CPU_AND(&cores, &cores, &mine);
        if (CPU_COUNT(&cores) == 0)
            continue; /* no cores, or none that this thread may use */
        ret->node[ret->n] = node;
        ret->cores[ret->n++] = cores;
    }
}

int dpt_numa_of_pci(const char *sys, const char *bus_id)
{
    char path[PATH_BYTES], text[32];
    int node;
    const int bytes = snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", sys, bus_id);
    if (bytes < 0 || (size_t)bytes >= sizeof path)
        return -1;
    for (char *c = path + strlen(sys); *c; c++) /* sysfs writes lower case, NVIDIA upper case */
        *c = (char)tolower((unsigned char)*c);
    if (!dpt_fs_read_line(path, text, sizeof text) || sscanf(text, "%d", &node) != 1)
        return -1;
    return node;
}

int dpt_numa_cores(const struct dpt_numa *numa)
{
    int cores = 0;
    for (int i = 0; i < numa->n; i++)
        cores += CPU_COUNT(&numa->cores[i]);
    return cores;
}

bool dpt_numa_is_even(const struct dpt_numa *numa, const int *at, int ranks, int threads,
                      int usable)
{
    int on[DPT_NUMA_NODES_MAX] = {0};
    if (usable < dpt_numa_cores(numa))
        return false;
    for (int r = 0; r < ranks; r++) {
        if (at[r] < 0)
            return false;
        on[at[r]]++;
    }
    for (int i = 0; i < numa->n; i++) {
        const int cores = CPU_COUNT(&numa->cores[i]);
        if (on[i] * dpt_numa_cores(numa) > cores * ranks || on[i] * threads > cores)
            return false;
    }
    return true;
}

int dpt_numa_assign(const struct dpt_numa *numa, int local_rank, int ranks)
{
    if (numa->n < 2 || ranks % numa->n != 0)
        return -1;
    for (int i = 1; i < numa->n; i++)
        if (CPU_COUNT(&numa->cores[i]) != CPU_COUNT(&numa->cores[0]))
            return -1;
    return local_rank / (ranks / numa->n);
}

enum dpt_status dpt_numa_stay(const struct dpt_numa *numa, int i, struct dpt_err *err)
{
    if (sched_setaffinity(0, sizeof numa->cores[i], &numa->cores[i]) != 0)
        return dpt_fail_errno(err, errno, "stay on NUMA node %d", numa->node[i]);
    return DPT_OK;
}
