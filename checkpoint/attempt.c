/* The shared part of an attempt (attempt.h). */
#include "checkpoint/attempt.h"

#include "checkpoint/layout/layout.h"
#include "checkpoint/safetensors.h"

#include <stdlib.h>
#include <string.h>

static enum dpt_status check_spec(const struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    if (!spec->dir || !spec->dir[0])
        return dpt_fail(err, DPT_EINVAL, "checkpoint.dir is empty");
    if (spec->n_writers < 1 || spec->n_writers > DPT_CHECKPOINT_WRITERS_MAX || spec->writer < 0 ||
        spec->writer >= spec->n_writers)
        return dpt_fail(err, DPT_EINVAL, "checkpoint writer %d of %d is out of range", spec->writer,
                        spec->n_writers);
    if (spec->n_tensors < 1 || spec->n_tensors > DPT_CHECKPOINT_TENSORS_MAX)
        return dpt_fail(err, DPT_EINVAL, "%d tensors: 1 to %d are written", spec->n_tensors,
                        DPT_CHECKPOINT_TENSORS_MAX);
    if (spec->state.step < 0 || spec->state.samples < 0 || spec->keep < 1)
        return dpt_fail(err, DPT_EINVAL, "checkpoint step, samples or keep is out of range");
    const bool moments = spec->tensors[0].m != NULL;
    for (int i = 0; i < spec->n_tensors; i++) {
        const struct dpt_checkpoint_tensor *tensor = &spec->tensors[i];
        if (!tensor->param || (tensor->m != NULL) != moments || (tensor->v != NULL) != moments)
            return dpt_fail(err, DPT_EINVAL,
                            "tensor '%s': param is needed, m and v for all tensors or for none",
                            tensor->name);
    }
    return DPT_OK;
}

static enum dpt_status deal(const struct dpt_checkpoint_spec *spec, struct dpt_attempt *attempt,
                            struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    int64_t *bytes = malloc((size_t)spec->n_tensors * sizeof *bytes);
    attempt->first = malloc(((size_t)spec->n_writers + 1) * sizeof *attempt->first);
    if (!bytes || !attempt->first)
        status = dpt_fail(err, DPT_ENOMEM, "deal tensors to writers: out of memory");
    for (int i = 0; status == DPT_OK && i < spec->n_tensors; i++)
        status = dpt_tensor_bytes(&spec->tensors[i], &bytes[i], err);
    if (status == DPT_OK)
        attempt->n_files = dpt_layout_deal(bytes, spec->n_tensors, spec->n_writers, attempt->first);
    free(bytes);
    return status;
}

enum dpt_status dpt_attempt_init(const struct dpt_checkpoint_spec *spec, struct dpt_attempt *ret,
                                 struct dpt_err *err)
{
    ret->dir.fd = ret->temporary.fd = -1;
    ret->first = NULL;
    DPT_TRY(check_spec(spec, err));
    DPT_TRY(dpt_name_temporary(spec->state.step, spec->generation, spec->attempt,
                               ret->temporary_name, err));
    dpt_name_step(spec->state.step, ret->step_name);
    ret->moments = spec->tensors[0].m != NULL;
    DPT_TRY(dpt_folder_make_all(spec->dir, err));
    DPT_TRY(dpt_folder_open(spec->dir, &ret->dir, err));
    return deal(spec, ret, err);
}

void dpt_attempt_fini(struct dpt_attempt *attempt)
{
    dpt_folder_close(&attempt->temporary);
    dpt_folder_close(&attempt->dir);
    free(attempt->first);
    attempt->first = NULL;
}

enum dpt_status dpt_attempt_open(struct dpt_attempt *attempt, bool make, struct dpt_err *err)
{
    if (make)
        DPT_TRY(dpt_folder_make(&attempt->dir, attempt->temporary_name, err));
    return dpt_folder_open_in(&attempt->dir, attempt->temporary_name, &attempt->temporary, err);
}

enum dpt_status dpt_attempt_go_on(const struct dpt_checkpoint_spec *spec, struct dpt_err *err)
{
    if (spec->cancelled && spec->cancelled(spec->ctx))
        return dpt_fail(err, DPT_EABORTED, "given up by the run");
    return DPT_OK;
}

enum dpt_status dpt_attempt_write_part(const struct dpt_attempt *attempt,
                                       const struct dpt_manifest *part, struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    char *text;
    size_t bytes;
    dpt_name_part(part->writer, name);
    DPT_TRY(dpt_manifest_print(part, &text, &bytes, err));
    enum dpt_status status = dpt_io_write_small(&attempt->temporary, name, text, bytes, err);
    free(text);
    return status;
}

enum dpt_status dpt_attempt_read_part(const struct dpt_attempt *attempt, int writer,
                                      struct dpt_manifest *ret, struct dpt_err *err)
{
    char name[DPT_CHECKPOINT_NAME_BYTES];
    char *text;
    size_t bytes;
    dpt_name_part(writer, name);
    DPT_TRY(
        dpt_io_read_small(&attempt->temporary, name, DPT_MANIFEST_BYTES_MAX, &text, &bytes, err));
    enum dpt_status status = dpt_manifest_parse(text, bytes, name, ret, err);
    free(text);
    if (status == DPT_OK && ret->writer != writer) {
        dpt_manifest_fini(ret);
        return dpt_fail(err, DPT_ECORRUPT, "'%s' is the report of another writer", name);
    }
    return status;
}

enum dpt_status dpt_attempt_wrap(const struct dpt_checkpoint_spec *spec, enum dpt_status status,
                                 struct dpt_err *err)
{
    return dpt_wrap(err, status, "checkpoint of step %lld in '%s' dropped",
                    (long long)spec->state.step, spec->dir ? spec->dir : "");
}
