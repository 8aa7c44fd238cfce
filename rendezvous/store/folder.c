/* The folder of a server that is given none (XDG Base Directory Specification 0.8, "state"). */
#include "rendezvous/store/store.h"

#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum dpt_status dpt_store_folder(int port, char ret_dir[PATH_MAX], struct dpt_err *err)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int bytes;
    if (home == NULL || home[0] != '/') {
        const struct passwd *user = getpwuid(geteuid());
        home = user != NULL ? user->pw_dir : NULL;
    }
    if (state != NULL && state[0] == '/') /* a relative path is invalid by the specification */
        bytes = snprintf(ret_dir, PATH_MAX, "%s/dpt-rdzv/%d", state, port);
    else if (geteuid() == 0)
        bytes = snprintf(ret_dir, PATH_MAX, "/var/lib/dpt-rdzv/%d", port);
    else if (home != NULL && home[0] == '/')
        bytes = snprintf(ret_dir, PATH_MAX, "%s/.local/state/dpt-rdzv/%d", home, port);
    else
        return dpt_fail(err, DPT_ECONFIG,
                        "there is no folder for the journal, as neither XDG_STATE_HOME nor HOME is "
                        "set: give --state-dir DIR, or --state-dir none");
    return bytes < PATH_MAX ? DPT_OK
                            : dpt_fail(err, DPT_ECONFIG,
                                       "the folder for the journal is too long: "
                                       "give --state-dir DIR");
}
