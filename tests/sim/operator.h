/* An operator who steers the simulated run (operator.c). */
#ifndef DPT_TESTS_SIM_OPERATOR_H
#define DPT_TESTS_SIM_OPERATOR_H

#include "tests/sim/sim.h"

/* Draws the commands of profile.n_commands. */
void operator_plan(struct sim *sim);
/* Sends command `number`, and again until it is done. */
void operator_event(struct sim *sim, int number);
/* The server has answered over this connection. */
void operator_answered(struct sim *sim, uint64_t conn, const Dpt__ControlReply *reply);
/* After a step of the server: no step is made in a pause. */
void operator_check(struct sim *sim);

#endif
