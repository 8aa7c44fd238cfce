/* The commands of dpt-data: argv[0] is the command's name; each returns the exit code. */
#ifndef DPT_WORKER_DATA_PREPARE_COMMANDS_H
#define DPT_WORKER_DATA_PREPARE_COMMANDS_H

#include "base/option.h"
#include "worker/data/tokenizer.h"

enum { DPT_DATA_EXIT_FAILED = 1, DPT_DATA_EXIT_USAGE = 2 };

int dpt_data_command_encode(int argc, char **argv);
int dpt_data_command_inspect(int argc, char **argv);
int dpt_data_command_verify(int argc, char **argv);

/* Prints the error as one line to stderr. Returns the exit code of a failure. */
int dpt_data_complain(const struct dpt_err *err);

/* A command line. The caller sets the members of the first part. */
struct dpt_args {
    int argc;
    char **argv;
    const char *help;
    const char *path_name; /* in the help */
    const struct dpt_option *options;
    size_t n_options;
    size_t n_required;               /* the first options of the table must be given */
    struct dpt_vocab_options *vocab; /* of DPT_VOCAB_OPTIONS; NULL: none */

    const char *tokenizer;
    int n_paths; /* dpt_args_read moves the paths to argv[1] … argv[n_paths] */
};

/* Rows of `options` for a tokenizer. Files without --tokenizer select hf or gpt2. */
#define DPT_VOCAB_OPTIONS(args, vocab)                                                             \
    {"--tokenizer", "NAME", .text = &(args).tokenizer},                                            \
        {"--vocab-bpe", "FILE", .text = &(vocab).vocab_bpe},                                       \
        {"--encoder-json", "FILE", .text = &(vocab).encoder_json},                                 \
        {"--tokenizer-json", "FILE", .text = &(vocab).tokenizer_json},                             \
    {                                                                                              \
        "--any-vocab", .flag = &(vocab).any_vocab                                                  \
    }

/* Parses the whole command line. Returns -1 if the command must run. Otherwise the function has
 * printed the help, or one line about the wrong usage, and returns the exit code. */
int dpt_args_read(struct dpt_args *args);

#endif
