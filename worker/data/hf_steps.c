/* The pre-tokenizer of a tokenizer.json as steps. */
#include "worker/data/hf_parts.h"

#include "worker/data/split.h"
#include "worker/data/split_pattern.h"

#include <string.h>

static enum dpt_status add_step(struct dpt_vocab *vocab, struct dpt_step step, const char *where,
                                struct dpt_err *err)
{
    if (vocab->n_steps == DPT_STEPS_MAX) {
        dpt_pattern_free(&step.pattern);
        return dpt_fail(err, DPT_ECONFIG, "%s: more than %d steps", where, DPT_STEPS_MAX);
    }
    vocab->steps[vocab->n_steps++] = step;
    return DPT_OK;
}

static enum dpt_status read_split_step(struct dpt_vocab *vocab, const json_t *split,
                                       const char *where, struct dpt_err *err)
{
    struct dpt_step step = {.kind = DPT_STEP_PATTERN};
    const char *text =
        json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
    const char *behavior = json_string_value(json_object_get(split, "behavior"));
    bool invert;
    if (!text)
        return dpt_fail(err, DPT_ECONFIG, "%s.pattern: expected a Regex", where);
    if (!behavior || strcmp(behavior, "Isolated") != 0)
        return dpt_fail(err, DPT_ECONFIG, "%s.behavior: '%.40s' is not supported, only Isolated is",
                        where, behavior ? behavior : "");
    DPT_TRY(dpt_hf_bool(split, where, "invert", &invert, err));
    if (invert)
        return dpt_fail(err, DPT_ECONFIG, "%s.invert: true is not supported", where);
    DPT_TRY(dpt_wrap(err, dpt_pattern_compile(text, &step.pattern, err), "%s.pattern", where));
    return add_step(vocab, step, where, err);
}

static enum dpt_status read_digits_step(struct dpt_vocab *vocab, const json_t *digits,
                                        const char *where, struct dpt_err *err)
{
    struct dpt_step step = {.kind = DPT_STEP_DIGITS};
    DPT_TRY(dpt_hf_bool(digits, where, "individual_digits", &step.each, err));
    return add_step(vocab, step, where, err);
}

static enum dpt_status read_byte_level_steps(struct dpt_vocab *vocab, const json_t *byte_level,
                                             const char *where, struct dpt_err *err)
{
    bool prefix, regex = true; /* the default of use_regex */
    DPT_TRY(dpt_hf_bool(byte_level, where, "add_prefix_space", &prefix, err));
    if (json_object_get(byte_level, "use_regex"))
        DPT_TRY(dpt_hf_bool(byte_level, where, "use_regex", &regex, err));
    if (prefix)
        DPT_TRY(add_step(vocab, (struct dpt_step){.kind = DPT_STEP_PREFIX}, where, err));
    if (regex)
        DPT_TRY(add_step(vocab, (struct dpt_step){.kind = DPT_STEP_GPT2}, where, err));
    return DPT_OK;
}

static enum dpt_status read_step(struct dpt_vocab *vocab, const json_t *json, const char *where,
                                 bool last, struct dpt_err *err)
{
    const char *type = dpt_hf_type(json);
    const bool byte_level = strcmp(type, "ByteLevel") == 0;
    if (last && !byte_level)
        return dpt_fail(err, DPT_ECONFIG,
                        "%s: '%.40s' is not supported as the last, only ByteLevel is", where, type);
    if (byte_level && !last)
        return dpt_fail(err, DPT_ECONFIG, "%s: ByteLevel is supported as the last alone", where);
    if (byte_level)
        return read_byte_level_steps(vocab, json, where, err);
    if (strcmp(type, "Split") == 0)
        return read_split_step(vocab, json, where, err);
    if (strcmp(type, "Digits") == 0)
        return read_digits_step(vocab, json, where, err);
    return dpt_fail(err, DPT_ECONFIG,
                    "%s: '%.40s' is not supported; Split, Digits and ByteLevel are", where, type);
}

/* Finds the places to cut: there every regular expression of the steps ends a piece, and no added
 * token has such a place inside. */
static enum dpt_cuts find_cuts(const struct dpt_vocab *vocab)
{
    bool ends = false;
    enum dpt_cuts cuts = DPT_CUTS_SPACES;
    for (int i = 0; i < vocab->n_steps; i++) {
        const struct dpt_step *step = &vocab->steps[i];
        const enum dpt_cuts own = step->kind == DPT_STEP_PATTERN  ? dpt_pattern_cuts(step->pattern)
                                  : step->kind == DPT_STEP_PREFIX ? DPT_CUTS_BLANKS
                                                                  : DPT_CUTS_SPACES;
        cuts = own > cuts ? own : cuts;
        ends |= step->kind == DPT_STEP_PATTERN || step->kind == DPT_STEP_GPT2;
    }
    for (int i = 0; i < vocab->n_added; i++) {
        const struct dpt_added *added = &vocab->added[i];
        if (dpt_split_cut(vocab->bytes + vocab->texts[added->id].at, added->bytes, cuts) > 0)
            return DPT_CUTS_NONE;
    }
    return ends ? cuts : DPT_CUTS_NONE;
}

enum dpt_status dpt_hf_read_steps(struct dpt_vocab *vocab, const json_t *pre_tokenizer,
                                  struct dpt_err *err)
{
    const bool sole = strcmp(dpt_hf_type(pre_tokenizer), "Sequence") != 0;
    const json_t *sequence = sole ? NULL : json_object_get(pre_tokenizer, "pretokenizers");
    const size_t n = json_array_size(sequence);
    if (sole)
        DPT_TRY(read_step(vocab, pre_tokenizer, "pre_tokenizer", true, err));
    else if (n == 0)
        return dpt_fail(err, DPT_ECONFIG, "pre_tokenizer: a Sequence of none");
    for (size_t i = 0; i < n; i++) {
        char where[64];
        (void)snprintf(where, sizeof where, "pre_tokenizer.pretokenizers[%zu]", i);
        DPT_TRY(read_step(vocab, json_array_get(sequence, i), where, i + 1 == n, err));
    }
    vocab->cuts = find_cuts(vocab);
    return DPT_OK;
}
