/* Settings of NCCL's, in its environment variables, under which what the machine relies on
 * (nccl_machine.h) does not hold. */
#ifndef DPT_WORKER_COMM_NCCL_SETTINGS_H
#define DPT_WORKER_COMM_NCCL_SETTINGS_H

/* The first that is set so; NULL: none is. *ret_why: what it would do. Both static text. */
const char *dpt_nccl_unbearable_setting(const char **ret_why);

#endif
