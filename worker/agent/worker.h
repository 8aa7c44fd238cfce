/* dpt-worker as a function: command line in, exit code out. */
#ifndef DPT_WORKER_AGENT_WORKER_H
#define DPT_WORKER_AGENT_WORKER_H

/* Runs a node agent until its run ends (the other role of the program, the rank process, is
 * main.c's to choose). Prints progress to stdout and errors to stderr; returns enum dpt_exit_code.
 * `program`: what to exec for ranks, NULL for this program itself. */
int dpt_worker_run(int argc, char *const *argv, const char *program);

#endif
