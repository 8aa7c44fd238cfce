/* The model of a tokenizer.json beyond its tokens: merges and settings. */
#include "worker/data/hf_parts.h"

#include <string.h>

enum { MERGES_MAX = 1 << 26 };

/* Refuses settings that would change tokens in a way that is not implemented. */
static enum dpt_status refuse_model_settings(const json_t *model, struct dpt_err *err)
{
    static const char *const flags[] = {"fuse_unk", "byte_fallback"};
    static const char *const texts[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0)
        return dpt_fail(err, DPT_ECONFIG, "model.dropout: %g is not supported, only null is",
                        json_number_value(dropout));
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        bool set;
        DPT_TRY(dpt_hf_bool(model, "model", flags[i], &set, err));
        if (set)
            return dpt_fail(err, DPT_ECONFIG, "model.%s: true is not supported", flags[i]);
    }
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *text = json_string_value(json_object_get(model, texts[i]));
        if (text && text[0])
            return dpt_fail(err, DPT_ECONFIG, "model.%s: '%.40s' is not supported, only null is",
                            texts[i], text);
    }
    return DPT_OK;
}

/* "LEFT RIGHT" or ["LEFT", "RIGHT"]; false: another value. */
static bool read_merge_text(const json_t *merge, struct dpt_merge_text *ret)
{
    const char *text = json_string_value(merge), *blank = text ? strchr(text, ' ') : NULL;
    ret->text[0] = blank ? text : json_string_value(json_array_get(merge, 0));
    ret->text[1] = blank ? blank + 1 : json_string_value(json_array_get(merge, 1));
    if (!ret->text[0] || !ret->text[1] || (!blank && json_array_size(merge) != 2))
        return false;
    ret->bytes[0] = blank ? (size_t)(blank - text) : strlen(ret->text[0]);
    ret->bytes[1] = strlen(ret->text[1]);
    return true;
}

static enum dpt_status add_merge(struct dpt_vocab *vocab, const struct dpt_symbols *symbols,
                                 const json_t *json, uint32_t rank, struct dpt_err *err)
{
    struct dpt_merge_text merge;
    int id[3];
    if (!read_merge_text(json, &merge))
        return dpt_fail(err, DPT_ECONFIG, "it is not two tokens");
    (void)dpt_vocab_find_merge(vocab, symbols, &merge, id);
    for (int i = 0; i < 2; i++)
        if (id[i] < 0)
            return dpt_fail(err, DPT_ECONFIG, "'%.*s' is no token of model.vocab",
                            merge.bytes[i] < 80 ? (int)merge.bytes[i] : 80, merge.text[i]);
    if (id[2] < 0)
        return dpt_fail(err, DPT_ECONFIG, "its result is no token of model.vocab");
    dpt_vocab_put_merge(vocab, id, rank);
    return DPT_OK;
}

static enum dpt_status read_merges(struct dpt_vocab *vocab, const json_t *merges,
                                   struct dpt_err *err)
{
    struct dpt_symbols symbols;
    size_t i;
    const json_t *merge;
    if (!json_is_array(merges))
        return dpt_fail(err, DPT_ECONFIG, "model.merges: expected a list");
    if (json_array_size(merges) > MERGES_MAX)
        return dpt_fail(err, DPT_ECONFIG,
                        "model.merges: it has %zu entries, at most %d are supported",
                        json_array_size(merges), MERGES_MAX);
    DPT_TRY(dpt_vocab_reserve_merges(vocab, json_array_size(merges), err));
    dpt_symbols_fill(&symbols);
    json_array_foreach(merges, i, merge)
    {
        DPT_TRY(dpt_wrap(err, add_merge(vocab, &symbols, merge, (uint32_t)i, err),
                         "model.merges[%zu]", i));
    }
    return DPT_OK;
}

enum dpt_status dpt_hf_read_model(struct dpt_vocab *vocab, const json_t *model, struct dpt_err *err)
{
    DPT_TRY(refuse_model_settings(model, err));
    DPT_TRY(dpt_hf_bool(model, "model", "ignore_merges", &vocab->ignore_merges, err));
    return read_merges(vocab, json_object_get(model, "merges"), err);
}
