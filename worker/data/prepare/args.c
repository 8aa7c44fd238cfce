/* Command lines of dpt-data. */
#include "worker/data/prepare/commands.h"

#include <stdio.h>
#include <string.h>

int dpt_data_complain(const struct dpt_err *err)
{
    (void)fprintf(stderr, "dpt-data: %s\n", err->text);
    return DPT_DATA_EXIT_FAILED;
}

int dpt_data_misused(const struct dpt_args *args, const struct dpt_err *err)
{
    (void)fprintf(stderr, "dpt-data: %s; see dpt-data %s --help\n", err->text, args->argv[0]);
    return DPT_DATA_EXIT_USAGE;
}

enum dpt_arg dpt_args_next(struct dpt_args *args, char ret_name[DPT_ARG_NAME_BYTES],
                           const char **ret_value)
{
    if (++args->at >= args->argc)
        return DPT_ARG_END;
    const char *arg = args->argv[args->at];
    if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
        return DPT_ARG_HELP;
    if (strncmp(arg, "--", 2) != 0) {
        *ret_value = arg;
        return DPT_ARG_PATH;
    }
    (void)snprintf(ret_name, DPT_ARG_NAME_BYTES, "%.*s", (int)strcspn(arg, "="), arg);
    return DPT_ARG_OPTION;
}

enum dpt_status dpt_args_value(struct dpt_args *args, const char **ret_value, struct dpt_err *err)
{
    const char *arg = args->argv[args->at], *equals = strchr(arg, '=');
    if (!equals && args->at + 1 >= args->argc)
        return dpt_fail(err, DPT_EINVAL, "%s needs a value", arg);
    *ret_value = equals ? equals + 1 : args->argv[++args->at];
    return DPT_OK;
}

/* The option that came last takes no value. */
static enum dpt_status check_flag(const struct dpt_args *args, const char *name,
                                  struct dpt_err *err)
{
    return strchr(args->argv[args->at], '=') ? dpt_fail(err, DPT_EINVAL, "%s takes no value", name)
                                             : DPT_OK;
}

static enum dpt_status set_tokenizer(struct dpt_args *args, struct dpt_vocab_options *vocab,
                                     struct dpt_err *err)
{
    const char *value = "";
    DPT_TRY(dpt_args_value(args, &value, err));
    if (!dpt_tokenizer_named(value, &vocab->kind))
        return dpt_fail(err, DPT_EINVAL, "--tokenizer: expected bytes, gpt2 or hf, got '%s'",
                        value);
    args->tokenizer_given = true;
    return DPT_OK;
}

static enum dpt_status set_file(struct dpt_args *args, struct dpt_vocab_options *vocab,
                                enum dpt_tokenizer kind, const char **file, struct dpt_err *err)
{
    if (!args->tokenizer_given)
        vocab->kind = kind;
    return dpt_args_value(args, file, err);
}

enum dpt_status dpt_args_vocab(struct dpt_args *args, const char *name,
                               struct dpt_vocab_options *vocab, bool *ret_taken,
                               struct dpt_err *err)
{
    *ret_taken = true;
    vocab->by_options = true;
    if (strcmp(name, "--tokenizer") == 0)
        return set_tokenizer(args, vocab, err);
    if (strcmp(name, "--vocab-bpe") == 0)
        return set_file(args, vocab, DPT_TOKENIZER_GPT2, &vocab->vocab_bpe, err);
    if (strcmp(name, "--encoder-json") == 0)
        return set_file(args, vocab, DPT_TOKENIZER_GPT2, &vocab->encoder_json, err);
    if (strcmp(name, "--tokenizer-json") == 0)
        return set_file(args, vocab, DPT_TOKENIZER_HF, &vocab->tokenizer_json, err);
    if (strcmp(name, "--any-vocab") == 0) {
        vocab->any_vocab = true;
        return check_flag(args, name, err);
    }
    *ret_taken = false;
    return DPT_OK;
}
