/* How many cores there are to use, and whether a wait may burn one.
 *
 * A wait that spins for a moment is quicker than one that sleeps, and takes the core from whoever
 * could compute on it. So waits spin only while the threads that compute on this host, as far as
 * this process knows, are no more than its cores. */
#ifndef DPT_BASE_CORES_H
#define DPT_BASE_CORES_H

#include <stdbool.h>
#include <stdint.h>

/* Cores that this process may compute on, at least 1: those of its affinity, or as many whole ones
 * as the CPU quota of its control groups comes to, if that is less. Any thread. */
int dpt_cores(void);

/* The same; *ret_id is equal in two processes of one host whose cores are the same ones: one
 * affinity and one quota. Any thread. */
int dpt_cores_identified(uint64_t *ret_id);

/* Says how many threads of the run compute on this host, in this process and others; 0: unknown,
 * which is how a process begins. Any thread. */
void dpt_cores_set_demand(int threads);

/* True when `threads` (what the caller knows of) and the demand both fit the cores. Any thread. The
 * first call of a process counts the cores, unless dpt_cores or dpt_cores_set_demand did; later
 * calls make no system call. */
bool dpt_cores_spare(int threads);

/* True when the demand is known and fits. Any thread; no system call, as a known demand implies
 * that the cores are counted. */
bool dpt_cores_known_spare(void);

#endif
