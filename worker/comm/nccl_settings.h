/* NCCL's environment variables that break an assumption of the machine (nccl_machine.h). */
#ifndef DPT_WORKER_COMM_NCCL_SETTINGS_H
#define DPT_WORKER_COMM_NCCL_SETTINGS_H

/* The first variable with such a value; NULL: none. *ret_why: its effect. Both static text. */
const char *dpt_nccl_unbearable_setting(const char **ret_why);

#endif
