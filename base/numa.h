/* NUMA nodes of cores and devices, from Linux' sysfs, and binding a process to a node.
 *
 * Linux allocates memory on the node of the thread that touches the memory first. So a process that
 * stays on the cores of a node has its memory on that node. */
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
    int node[DPT_NUMA_NODES_MAX];        /* numbers of the nodes in the system, ascending */
    cpu_set_t cores[DPT_NUMA_NODES_MAX]; /* cores of the node that the thread may use */
};

/* Reads the nodes below `sys` (DPT_NUMA_SYS except in tests). n is 0 if no node is reported. */
void dpt_numa_read(const char *sys, struct dpt_numa *ret);

/* The node of a PCI device ("0000:1B:00.0"); -1: the device has no node, or the node is unknown. */
int dpt_numa_of_pci(const char *sys, const char *bus_id);

/* Reads a list such as "0-3,8", which may be empty. False: the text is not a list. */
bool dpt_numa_parse_cores(const char *text, cpu_set_t *ret);

/* Cores of all nodes together. */
int dpt_numa_cores(const struct dpt_numa *numa);

/* Whether binding is fair: ranks that are bound to the nodes with these indices (`at`, [ranks])
 * have as many cores each as unbound ranks, and a core for each of their `threads` (0: their share
 * of the cores). False if an index is -1. False if `usable` (dpt_cores) is less than the cores of
 * the nodes, because then all ranks share a quota, whatever their node. */
bool dpt_numa_is_even(const struct dpt_numa *numa, const int *at, int ranks, int threads,
                      int usable);

/* The index in `numa` of the node for rank `local_rank` of `ranks` ranks of this machine that have
 * no device. Each node gets the same number of ranks, and neighbouring ranks get the same node. -1:
 * the nodes are unequal, their number does not divide `ranks`, or there are fewer than two
 * nodes. */
int dpt_numa_assign(const struct dpt_numa *numa, int local_rank, int ranks);

/* Binds the calling thread, and threads that it starts later, to the cores of numa->node[i]. */
DPT_MUST_USE enum dpt_status dpt_numa_stay(const struct dpt_numa *numa, int i, struct dpt_err *err);

#endif
