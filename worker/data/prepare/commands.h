/* The commands of dpt-data: argv[0] is the command's name; each returns the exit code. */
#ifndef DPT_WORKER_DATA_PREPARE_COMMANDS_H
#define DPT_WORKER_DATA_PREPARE_COMMANDS_H

#include "worker/data/tokenizer.h"

enum { DPT_DATA_EXIT_FAILED = 1, DPT_DATA_EXIT_USAGE = 2, DPT_DATA_PATHS_MAX = 65536 };

int dpt_data_command_encode(int argc, char **argv);
int dpt_data_command_inspect(int argc, char **argv);
int dpt_data_command_verify(int argc, char **argv);

/* One line to stderr; the code of a failure. */
int dpt_data_complain(const struct dpt_err *err);

/* Walks over arguments: "--name VALUE" or "--name=VALUE", and words. */
struct dpt_args {
    int argc, at;
    char **argv;
    bool tokenizer_given;
};

/* What comes next. */
enum dpt_arg {
    DPT_ARG_END,
    DPT_ARG_PATH,   /* *ret_value is a word */
    DPT_ARG_OPTION, /* ret_name is set; its value, if it takes one, is for dpt_args_value */
    DPT_ARG_HELP
};
enum { DPT_ARG_NAME_BYTES = 32 };
enum dpt_arg dpt_args_next(struct dpt_args *args, char ret_name[DPT_ARG_NAME_BYTES],
                           const char **ret_value);
/* The value of the option that came last; DPT_EINVAL when there is none. */
DPT_MUST_USE enum dpt_status dpt_args_value(struct dpt_args *args, const char **ret_value,
                                            struct dpt_err *err);

/* --tokenizer, --vocab-bpe, --encoder-json, --any-vocab, --tokenizer-json: *ret_taken when `name`
 * is one of them. Files named without a tokenizer are those of gpt2, or of hf. */
DPT_MUST_USE enum dpt_status dpt_args_vocab(struct dpt_args *args, const char *name,
                                            struct dpt_vocab_options *vocab, bool *ret_taken,
                                            struct dpt_err *err);

/* One line to stderr and a word on --help; the code of a wrong usage. */
int dpt_data_misused(const struct dpt_args *args, const struct dpt_err *err);

#endif
