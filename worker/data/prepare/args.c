/* Command lines of dpt-data. */
#include "worker/data/prepare/commands.h"

#include <stdio.h>
#include <string.h>

int dpt_data_complain(const struct dpt_err *err)
{
    (void)fprintf(stderr, "dpt-data: %s\n", err->text);
    return DPT_DATA_EXIT_FAILED;
}

static enum dpt_status resolve_tokenizer(struct dpt_args *args, struct dpt_err *err)
{
    struct dpt_vocab_options *vocab = args->vocab;
    const bool gpt2 = vocab->vocab_bpe || vocab->encoder_json, hf = vocab->tokenizer_json;
    vocab->by_options = args->tokenizer || gpt2 || hf || vocab->any_vocab;
    vocab->kind = hf ? DPT_TOKENIZER_HF : gpt2 ? DPT_TOKENIZER_GPT2 : DPT_TOKENIZER_BYTES;
    if (args->tokenizer && !dpt_tokenizer_named(args->tokenizer, &vocab->kind))
        return dpt_fail(err, DPT_EINVAL, "--tokenizer: expected bytes, gpt2 or hf, got '%s'",
                        args->tokenizer);
    return DPT_OK;
}

static enum dpt_status read_command_line(struct dpt_args *args, bool *ret_help, struct dpt_err *err)
{
    for (int at = 1; at < args->argc; at++) {
        char *word = args->argv[at];
        *ret_help = strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
        if (*ret_help)
            return DPT_OK;
        if (strncmp(word, "--", 2) == 0)
            DPT_TRY(
                dpt_option_read(args->options, args->n_options, args->argc, args->argv, &at, err));
        else
            args->argv[++args->n_paths] = word;
    }
    if (args->vocab)
        DPT_TRY(resolve_tokenizer(args, err));
    for (size_t i = 0; i < args->n_required; i++)
        if (!*args->options[i].text)
            return dpt_fail(err, DPT_EINVAL, "%s %s is missing", args->options[i].name,
                            args->options[i].value);
    return args->n_paths > 0 ? DPT_OK
                             : dpt_fail(err, DPT_EINVAL, "no %s is given", args->path_name);
}

int dpt_args_read(struct dpt_args *args)
{
    struct dpt_err err;
    bool help = false;
    if (read_command_line(args, &help, &err) != DPT_OK) {
        (void)fprintf(stderr, "dpt-data: %s; see dpt-data %s --help\n", err.text, args->argv[0]);
        return DPT_DATA_EXIT_USAGE;
    }
    if (!help)
        return -1;
    (void)fputs(args->help, stdout);
    return 0;
}
