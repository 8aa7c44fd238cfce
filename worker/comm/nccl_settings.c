/* Environment variables of NCCL that break an assumption of the machine (nccl_machine.h). */
#include "worker/comm/nccl_calls.h"

#include <stdlib.h>

static const struct {
    const char *name, *why;
    bool any; /* any value is refused; else every value except 0 */
} settings[] = {
    {"NCCL_COMM_BLOCKING", "communicators could not be aborted", false},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "operations of different groups would wait for each other",
     false},
    {"NCCL_COMM_SPLIT_SHARE_RESOURCES", "a group could not end without the others", false},
    {"NCCL_COMM_SHRINK_SHARE_RESOURCES", "a new communicator would need the old one", false},
    {"NCCL_COMM_ID", "all generations would meet at one address", true},
};

const char *dpt_nccl_refused_setting(const char **ret_why)
{
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        const char *value = getenv(settings[i].name);
        *ret_why = settings[i].why;
        if (value != NULL && (settings[i].any || strtoll(value, NULL, 0) != 0))
            return settings[i].name;
    }
    return NULL;
}
