/* One server and three agents on a stage, for tests of losses: a and b run, c is a spare. */
#ifndef DPT_TESTS_RENDEZVOUS_CORE_TRIO_H
#define DPT_TESTS_RENDEZVOUS_CORE_TRIO_H

#include "tests/rendezvous/core/fake_agent.h"

extern struct stage stage;
extern struct fake a, b, c;
extern struct fake *const two[2]; /* a and b */

/* Setup and teardown of cmocka: the server is up, and no fake has sent. */
int trio_setup(void **state);
int trio_teardown(void **state);

/* a and b are in generation 1 and run. */
void trio_start(void);
/* Another server takes over; a and b are connected to it and have kept their places. */
void trio_restart_server(void);
/* a and b report that they have applied this step. */
void trio_step_to(int64_t step);
/* Step 3 is made and saved; then b dies, and a runs alone. */
void trio_save_and_lose_b(void);

#endif
