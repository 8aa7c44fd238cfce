/* Command lines of dpt-data. */
#include "worker/data/prepare/commands.h"

#include "base/parse.h"

#include <stdio.h>
#include <string.h>

int dpt_data_complain(const struct dpt_err *err)
{
    (void)fprintf(stderr, "dpt-data: %s\n", err->text);
    return DPT_DATA_EXIT_FAILED;
}

static bool is_option(const struct dpt_args *args, const char *name)
{
    const char *arg = args->argv[args->at];
    const size_t n = strlen(name);
    return strncmp(arg, name, n) == 0 && (arg[n] == '\0' || arg[n] == '=');
}

static enum dpt_status option_value(struct dpt_args *args, const char **ret_value,
                                    struct dpt_err *err)
{
    const char *arg = args->argv[args->at], *equals = strchr(arg, '=');
    if (!equals && args->at + 1 >= args->argc)
        return dpt_fail(err, DPT_EINVAL, "%s needs a value", arg);
    *ret_value = equals ? equals + 1 : args->argv[++args->at];
    return DPT_OK;
}

static enum dpt_status read_command_option(struct dpt_args *args, const struct dpt_option *option,
                                           struct dpt_err *err)
{
    const char *value;
    DPT_TRY(option_value(args, &value, err));
    if (option->text)
        *option->text = value;
    else if (option->set)
        return dpt_wrap(err, option->set(args, value, err), "%s", option->name);
    else
        return dpt_wrap(err, dpt_parse_i64(value, option->min, option->max, option->number, err),
                        "%s", option->name);
    return DPT_OK;
}

static enum dpt_status read_tokenizer(struct dpt_args *args, struct dpt_err *err)
{
    const char *value = "";
    DPT_TRY(option_value(args, &value, err));
    if (!dpt_tokenizer_named(value, &args->vocab->kind))
        return dpt_fail(err, DPT_EINVAL, "--tokenizer: expected bytes, gpt2 or hf, got '%s'",
                        value);
    args->tokenizer_given = true;
    return DPT_OK;
}

/* *ret_read: the option is one of the tokenizer's. */
static enum dpt_status read_vocab_option(struct dpt_args *args, bool *ret_read, struct dpt_err *err)
{
    const struct {
        const char *name;
        enum dpt_tokenizer kind;
        const char **file;
    } files[] = {{"--vocab-bpe", DPT_TOKENIZER_GPT2, &args->vocab->vocab_bpe},
                 {"--encoder-json", DPT_TOKENIZER_GPT2, &args->vocab->encoder_json},
                 {"--tokenizer-json", DPT_TOKENIZER_HF, &args->vocab->tokenizer_json}};
    *ret_read = true;
    if (is_option(args, "--tokenizer"))
        return read_tokenizer(args, err);
    if (is_option(args, "--any-vocab")) {
        args->vocab->any_vocab = true;
        return strchr(args->argv[args->at], '=')
                   ? dpt_fail(err, DPT_EINVAL, "--any-vocab takes no value")
                   : DPT_OK;
    }
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (is_option(args, files[i].name)) {
            if (!args->tokenizer_given)
                args->vocab->kind = files[i].kind;
            return option_value(args, files[i].file, err);
        }
    *ret_read = false;
    return DPT_OK;
}

static enum dpt_status read_option(struct dpt_args *args, struct dpt_err *err)
{
    const char *arg = args->argv[args->at];
    bool read = false;
    if (args->vocab)
        DPT_TRY(read_vocab_option(args, &read, err));
    for (size_t i = 0; !read && i < args->n_options; i++)
        if (is_option(args, args->options[i].name))
            return read_command_option(args, &args->options[i], err);
    if (read)
        args->vocab->by_options = true;
    return read ? DPT_OK
                : dpt_fail(err, DPT_EINVAL, "%.*s: there is no such option", (int)strcspn(arg, "="),
                           arg);
}

static enum dpt_status read_command_line(struct dpt_args *args, bool *ret_help, struct dpt_err *err)
{
    for (args->at = 1; args->at < args->argc; args->at++) {
        char *arg = args->argv[args->at];
        *ret_help = strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0;
        if (*ret_help)
            return DPT_OK;
        if (strncmp(arg, "--", 2) == 0)
            DPT_TRY(read_option(args, err));
        else
            args->argv[++args->n_paths] = arg;
    }
    for (size_t i = 0; i < args->n_options; i++)
        if (args->options[i].required && !*args->options[i].text)
            return dpt_fail(err, DPT_EINVAL, "%s %s is missing", args->options[i].name,
                            args->options[i].required);
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
