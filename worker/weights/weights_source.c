/* Weights from one of four sources (weights_source.h). */
#include "worker/weights/weights_source.h"

enum dpt_status dpt_weights_source_read(const struct dpt_weights_source *source, int param,
                                        int64_t first, int64_t end, float *ret, struct dpt_err *err)
{
    if (source->merged)
        return dpt_merged_read(source->merged, param, first, end, ret, err);
    if (source->published)
        return dpt_published_read(source->published, param, first, end, ret, err);
    if (source->llmc)
        return dpt_llmc_read(source->llmc, source->model, param, (struct dpt_span){first, end}, ret,
                             err);
    return dpt_checkpoint_weights(source->checkpoint, dpt_model_param(source->model, param), first,
                                  end, ret, err);
}

enum dpt_status dpt_weights_source_check(const struct dpt_weights_source *source,
                                         struct dpt_err *err)
{
    return source->merged ? dpt_merged_check(source->merged, err) : DPT_OK;
}

void dpt_weights_source_close(struct dpt_weights_source *source)
{
    dpt_merged_close(&source->merged);
    dpt_checkpoint_close(&source->checkpoint);
    dpt_published_close(&source->published);
    dpt_llmc_close(&source->llmc);
}
