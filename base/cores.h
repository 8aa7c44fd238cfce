/* The number of usable cores, and whether a wait may spin.
 *
 * A spinning wait ends sooner than a sleeping one, but it occupies a core on which another thread
 * could compute. So a wait spins only while this host has no more known compute threads than
 * cores. */
#ifndef DPT_BASE_CORES_H
#define DPT_BASE_CORES_H

#include <stdbool.h>
#include <stdint.h>

/* The number of cores on which this process may compute, at least 1: the cores of its affinity or,
 * if fewer, the whole cores in the CPU quota of its control groups. Any thread. */
int dpt_cores(void);

/* Like dpt_cores. *ret_id is equal in two processes of one host that have the same affinity and
 * quota. Any thread. */
int dpt_cores_identified(uint64_t *ret_id);

/* Sets the demand: the number of the run's compute threads on this host, in this and other
 * processes. 0, the initial value: unknown. Any thread. */
void dpt_cores_set_demand(int threads);

/* Whether `threads` (threads that the caller knows) and the demand are each at most the number of
 * cores. Any thread. The first call in a process counts the cores, unless dpt_cores or
 * dpt_cores_set_demand has counted them. Later calls make no system call. */
bool dpt_cores_spare(int threads);

/* Whether the demand is known and at most the number of cores. Any thread. Makes no system call,
 * because dpt_cores_set_demand has counted the cores. */
bool dpt_cores_known_spare(void);

#endif
