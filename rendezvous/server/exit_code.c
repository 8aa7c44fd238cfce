/* The exit codes of dpt-rdzv. */
#include "rendezvous/server/exit_code.h"

enum dpt_rdzv_exit dpt_rdzv_exit_code(enum dpt_status status)
{
    switch (status) {
    case DPT_OK:
        return DPT_RDZV_EXIT_OK;
    case DPT_ECONFIG:
    case DPT_EEXIST:
    case DPT_ENOENT:
    case DPT_ECORRUPT:
    case DPT_EVERSION:
    case DPT_EREFUSED:
    case DPT_EUNSUPPORTED:
    case DPT_EOVERFLOW:
        return DPT_RDZV_EXIT_CONFIG;
    default:
        return DPT_RDZV_EXIT_BROKEN;
    }
}
