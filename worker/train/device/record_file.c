/* The file of a record that a rank writes about itself (rank_device.h). */
#include "base/fs.h"
#include "base/log.h"
#include "worker/train/device/rank_device.h"
#include "worker/train/log/rank_log.h"

#include <stdio.h>

void rank_write_record(const struct dpt_rank *r, const char *kind, json_t *object)
{
    char name[64];
    struct dpt_err err;
    (void)snprintf(name, sizeof name, "rank-%d.%s.json", r->options->start->local_rank, kind);
    enum dpt_status status = dpt_fs_mkdirs(r->log->node_dir, &err);
    if (status == DPT_OK)
        status = dpt_run_file_write_json(object, r->log->node_dir, name, &err);
    else
        json_decref(object);
    if (status != DPT_OK)
        dpt_log(DPT_LOG_ERROR, "the record '%s' of this rank is lost: %s", name, err.text);
}
