/* The number of usable cores, and whether a wait may spin.
 *
 * A spinning wait ends sooner than a sleeping one, but it occupies a core that another thread could
 * compute on. So waits spin only while the known compute threads of this host are no more than its
 * cores. */
#ifndef DPT_BASE_CORES_H
#define DPT_BASE_CORES_H

#include <stdbool.h>
#include <stdint.h>

/* Cores that this process may compute on, at least 1: those of its affinity, or the whole cores of
 * the CPU quota of its control groups if these are fewer. Any thread. */
int dpt_cores(void);

/* The same; *ret_id is equal in two processes of one host that have the same affinity and quota.
 * Any thread. */
int dpt_cores_identified(uint64_t *ret_id);

/* Sets the number of the run's compute threads on this host, in this process and others; 0:
 * unknown, the initial value. Any thread. */
void dpt_cores_set_demand(int threads);

/* Whether `threads`, which the caller knows, and the demand are each at most the cores. Any thread.
 * The first call of a process counts the cores, unless dpt_cores or dpt_cores_set_demand did; later
 * calls make no system call. */
bool dpt_cores_spare(int threads);

/* Whether the demand is known and at most the cores. Any thread; no system call, since
 * dpt_cores_set_demand has counted the cores. */
bool dpt_cores_known_spare(void);

#endif
