/* What dpt-ctl says about states. */
#ifndef DPT_WORKER_CTL_WORDS_H
#define DPT_WORKER_CTL_WORDS_H

#include "rendezvous/proto/message.h"

#include <limits.h>
#include <stdbool.h>

/* "trains", "paused", "pausing", "stopping", "stopped", "waits", "forming", "finishing", "done",
 * "failed"; "unheard": it has not ended, and none of its nodes has been heard for a lease. */
const char *dpt_ctl_run_word(const Dpt__RunInfo *run);
/* "trains", "spare", "waits", "leaves", "awaited", "denied". */
const char *dpt_ctl_node_word(const Dpt__NodeInfo *node);
/* True: the server has a time at which it last heard the node. */
bool dpt_ctl_node_is_heard(const Dpt__NodeInfo *node);
/* The folder of the checkpoint of this step, as the config of the run names it; "": it names none,
 * or the config cannot be read. */
void dpt_ctl_checkpoint_folder(const Dpt__RunSpec *spec, int64_t step, char ret[PATH_MAX]);

#endif
