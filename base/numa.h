/* Which cores are near to which memory and which devices, as Linux' sysfs says, and staying there.
 *
 * A thread takes memory from the node that it runs on, so to keep a process on the cores of a node
 * is to keep its memory there. */
#ifndef DPT_BASE_NUMA_H
#define DPT_BASE_NUMA_H

#include "base/err.h"

#include <sched.h>
#include <stdbool.h>

#define DPT_NUMA_SYS "/sys"
enum { DPT_NUMA_NODES_MAX = 64 };

/* Nodes that have cores which the calling thread may use. */
struct dpt_numa {
    int n;
    int node[DPT_NUMA_NODES_MAX];        /* numbers as the system has them, ascending */
    cpu_set_t cores[DPT_NUMA_NODES_MAX]; /* that it may use */
};

/* Reads them below `sys` (DPT_NUMA_SYS; tests have another). A machine that tells nothing has none:
 * n is 0. */
void dpt_numa_read(const char *sys, struct dpt_numa *ret);

/* The node of a PCI device ("0000:1B:00.0"); -1: it has none, or nobody knows. */
int dpt_numa_of_pci(const char *sys, const char *bus_id);

/* Reads a list such as "0-3,8"; false: it is none. An empty one is empty. */
bool dpt_numa_parse_cores(const char *text, cpu_set_t *ret);

/* Cores of all nodes together. */
int dpt_numa_cores(const struct dpt_numa *numa);

/* Whether ranks on the nodes with these indices (`at`, [ranks]) have as many cores each as if they
 * were anywhere, and `threads` each (0: their share) have cores of their own. False if one of them
 * is -1, or `usable` (dpt_cores) is less than the nodes have: a quota is shared by all, wherever
 * they are. */
bool dpt_numa_is_even(const struct dpt_numa *numa, const int *at, int ranks, int threads,
                      int usable);

/* The index in `numa` for a rank that has no device, of `ranks` on this node of the run: as many
 * ranks on each, neighbours together. -1: they cannot be dealt evenly, or there is nothing to
 * choose. */
int dpt_numa_deal(const struct dpt_numa *numa, int local_rank, int ranks);

/* Keeps the calling thread, and those that it starts from here on, on the cores of numa->node[i].
 */
DPT_MUST_USE enum dpt_status dpt_numa_stay(const struct dpt_numa *numa, int i, struct dpt_err *err);

#endif
