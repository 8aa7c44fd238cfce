/* dpt-worker as a function: command line in, exit code out. */
#ifndef DPT_WORKER_AGENT_WORKER_H
#define DPT_WORKER_AGENT_WORKER_H

/* Runs a node agent until its run ends; main.c chooses between an agent and a rank process. Prints
 * progress to stdout and errors to stderr. Returns enum dpt_exit_code. `program`: executed for the
 * ranks; NULL: this program. */
int dpt_worker_run(int argc, char *const *argv, const char *program);

#endif
