/* Checks, opens and closes an attempt; writes reports (attempt.h). */
#include "checkpoint/attempt.h"

#include <stdlib.h>

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
    if (spec->attempt &&
        (spec->state.rescue.node != NULL) != dpt_name_is_rescue_attempt(spec->attempt))
        return dpt_fail(err, DPT_EINVAL,
                        "checkpoint attempt '%.80s': " DPT_NAME_RESCUE_ATTEMPT
                        " is the prefix of rescues, and of no other attempt",
                        spec->attempt);
    if (spec->state.step < 0 || spec->state.samples < 0 || spec->keep < 1)
        return dpt_fail(err, DPT_EINVAL, "checkpoint step, samples or keep is out of range");
    return DPT_OK;
}

static enum dpt_status check_pieces(const struct dpt_checkpoint_spec *spec,
                                    const struct dpt_files *files, struct dpt_err *err)
{
    int tensor = -1;
    int64_t end = 0;
    for (int i = 0; i < spec->n_pieces; i++) {
        const struct dpt_checkpoint_piece *piece = &spec->pieces[i];
        if (piece->tensor < 0 || piece->tensor >= spec->n_tensors || piece->tensor < tensor ||
            piece->first < (piece->tensor == tensor ? end : 0) || piece->end <= piece->first ||
            piece->end > files->tensor[piece->tensor].numel || !piece->param ||
            (spec->moments && (!piece->m || (!piece->v && !spec->no_v))))
            return dpt_fail(err, DPT_EINVAL,
                            "piece %d of the writer, elements %lld to %lld of tensor %d, is out of "
                            "order, out of range or without values",
                            i, (long long)piece->first, (long long)piece->end, piece->tensor);
        tensor = piece->tensor;
        end = piece->end;
    }
    return DPT_OK;
}

enum dpt_status dpt_attempt_init(const struct dpt_checkpoint_spec *spec, struct dpt_attempt *ret,
                                 struct dpt_err *err)
{
    ret->spec = spec;
    ret->dir.fd = ret->temporary.fd = -1;
    ret->files = (struct dpt_files){.n = 0};
    DPT_TRY(check_spec(spec, err));
    DPT_TRY(dpt_name_temporary(spec->state.step, spec->generation, spec->attempt,
                               ret->temporary_name, err));
    dpt_name_step(spec->state.step, spec->state.rescue.node != NULL, ret->step_name);
    ret->n_kinds = spec->moments ? DPT_KIND_COUNT : 1;
    DPT_TRY(dpt_files_init(spec->tensors, spec->n_tensors, spec->file_bytes, spec->adapters,
                           &ret->files, err));
    DPT_TRY(check_pieces(spec, &ret->files, err));
    DPT_TRY(dpt_folder_make_all(spec->dir, err));
    return dpt_folder_open(spec->dir, &ret->dir, err);
}

enum dpt_status dpt_attempt_end(struct dpt_attempt *attempt, enum dpt_status status,
                                struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = attempt->spec;
    dpt_folder_close(&attempt->temporary);
    dpt_folder_close(&attempt->dir);
    dpt_files_fini(&attempt->files);
    return dpt_wrap(err, status, "checkpoint of step %lld in '%s' dropped",
                    (long long)spec->state.step, spec->dir ? spec->dir : "");
}

enum dpt_status dpt_attempt_open(struct dpt_attempt *attempt, bool create, struct dpt_err *err)
{
    if (create)
        DPT_TRY(dpt_folder_make(&attempt->dir, attempt->temporary_name, err));
    return dpt_folder_open_in(&attempt->dir, attempt->temporary_name, &attempt->temporary, err);
}

enum dpt_status dpt_attempt_check_cancelled(const struct dpt_attempt *attempt, struct dpt_err *err)
{
    const struct dpt_checkpoint_spec *spec = attempt->spec;
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

enum dpt_status dpt_attempt_refuse_values(const struct dpt_manifest *part, struct dpt_err *err)
{
    return dpt_fail(err, DPT_EDIVERGED, "%s holds a value that is not finite", part->not_finite);
}
