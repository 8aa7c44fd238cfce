/* The command `dpt-rdzv history`. */
#ifndef DPT_RENDEZVOUS_SERVER_HISTORY_MAIN_H
#define DPT_RENDEZVOUS_SERVER_HISTORY_MAIN_H

#include "base/err.h"

/* argv[0] is "history". Writes to standard output. DPT_ECONFIG: a wrong option. */
DPT_MUST_USE enum dpt_status dpt_rdzv_print_history(int argc, char *const *argv,
                                                    struct dpt_err *err);

#endif
