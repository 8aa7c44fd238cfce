/* The workspace of a CPU stream. */
#include "kernels/cpu/stream.h"

bool dpt_cpu_workspace(struct dpt_cpu_stream *s, enum dpt_workspace_kind kind, size_t shared,
                       size_t each, struct dpt_workspace *ret)
{
    shared = dpt_round64(shared);
    each = dpt_round64(each);
    size_t bytes = shared + each * (size_t)s->threads;
    if (bytes > s->workspaces[kind].bytes) {
        dpt_device_free_for(s->base.device, DPT_MEMORY_WORKSPACE, s->workspaces[kind].ptr,
                            s->workspaces[kind].bytes);
        s->workspaces[kind].ptr = NULL;
        s->workspaces[kind].bytes = 0;
        void *ptr = NULL;
        struct dpt_err err;
        enum dpt_status status =
            dpt_device_alloc_for(s->base.device, DPT_MEMORY_WORKSPACE, bytes, &ptr, &err);
        if (status != DPT_OK) {
            dpt_stream_fail(&s->base, status, err.text);
            return false;
        }
        s->workspaces[kind].ptr = ptr;
        s->workspaces[kind].bytes = bytes;
    }
    char *base = s->workspaces[kind].ptr;
    *ret = (struct dpt_workspace){.shared = base, .threads = base + shared, .each = each};
    return !s->base.preparing;
}
