/* `dpt-rdzv history`: what the journal of a server says. */
#include "rendezvous/server/history_main.h"

#include "base/option.h"
#include "base/stdout.h"
#include "rendezvous/server/server.h"
#include "rendezvous/store/history.h"
#include "rendezvous/store/store.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

static const char help_text[] =
    "usage: dpt-rdzv history [--state-dir DIR | --port N] [--run R] [--json]\n"
    "\n"
    "Prints what the journal of a server has: its runs with their generations, failures, "
    "checkpoints and nodes. The server may\n"
    "be running.\n"
    "\n"
    "  --state-dir DIR   the folder of the server's journal\n"
    "  --port N          without --state-dir: the server's port, which names its folder (default "
    "29500)\n"
    "  --run R           runs of this name only\n"
    "  --json            one JSON object\n"
    "  --help            print this\n";

enum dpt_status dpt_rdzv_print_history(int argc, char *const *argv, struct dpt_err *err)
{
    struct dpt_history_options history = {0};
    char dir[PATH_MAX];
    int64_t port = DPT_SERVER_PORT;
    bool help = false;
    struct dpt_err why;
    const struct dpt_option options[] = {
        {"--state-dir", "DIR", .text = &history.dir},
        {"--port", "N", .number = &port, .min = 1, .max = 65535},
        {"--run", "R", .text = &history.run},
        {"--json", .flag = &history.json},
        {"--help", .flag = &help},
    };
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0)
            return dpt_fail(err, DPT_ECONFIG,
                            "unexpected argument '%s' (see dpt-rdzv history --help)", argv[i]);
        if (dpt_option_read(options, sizeof options / sizeof options[0], argc, argv, &i, &why) !=
            DPT_OK)
            return dpt_fail(err, DPT_ECONFIG, "%s (see dpt-rdzv history --help)", why.text);
    }
    if (help) {
        (void)fputs(help_text, stdout);
    } else {
        if (history.dir == NULL) {
            DPT_TRY(dpt_store_folder((int)port, dir, err));
            history.dir = dir;
        }
        DPT_TRY(dpt_store_history(&history, stdout, err));
    }
    return dpt_stdout_flush(err);
}
