/* Delays of known length in a program with faults (faults.c). */
#ifndef DPT_TESTS_WORKER_TRAIN_DELAYS_H
#define DPT_TESTS_WORKER_TRAIN_DELAYS_H

/* Delays the calling thread if the environment variable asks for it: US:FILE, microseconds, and a
 * file to which the begin and the end of the delay are appended: two int64_t, ns since 1970. A
 * delay that cannot be logged ends the process. Any thread. */
void dpt_test_delay(const char *variable);

#endif
