/* The exit codes of dpt-rdzv. */
#ifndef DPT_RENDEZVOUS_SERVER_EXIT_CODE_H
#define DPT_RENDEZVOUS_SERVER_EXIT_CODE_H

#include "base/err.h"

enum dpt_rdzv_exit {
    DPT_RDZV_EXIT_OK = 0,
    DPT_RDZV_EXIT_CONFIG = 2, /* a wrong option, a port in use, a journal that cannot be used */
    DPT_RDZV_EXIT_BROKEN = 4  /* the system failed, or dpt-rdzv did */
};

/* The exit code of a server or a command that ended with this status. */
enum dpt_rdzv_exit dpt_rdzv_exit_code(enum dpt_status status);

#endif
