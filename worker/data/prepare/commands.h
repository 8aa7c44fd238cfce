/* The commands of dpt-data: argv[0] is the command's name; each returns the exit code. */
#ifndef DPT_WORKER_DATA_PREPARE_COMMANDS_H
#define DPT_WORKER_DATA_PREPARE_COMMANDS_H

#include "worker/data/tokenizer.h"

enum { DPT_DATA_EXIT_FAILED = 1, DPT_DATA_EXIT_USAGE = 2 };

int dpt_data_command_encode(int argc, char **argv);
int dpt_data_command_inspect(int argc, char **argv);
int dpt_data_command_verify(int argc, char **argv);

/* Prints the error as one line to stderr. Returns the exit code of a failure. */
int dpt_data_complain(const struct dpt_err *err);

struct dpt_args;

/* An option that takes a value: "--name VALUE" or "--name=VALUE". The value goes to one of `text`,
 * `number` and `set`. */
struct dpt_option {
    const char *name;
    const char **text;
    int64_t *number, min, max;
    enum dpt_status (*set)(struct dpt_args *args, const char *value, struct dpt_err *err);
    const char *required; /* the value's name in the help; NULL: the option may be absent */
};

/* A command line. The caller sets the members of the first part. */
struct dpt_args {
    int argc;
    char **argv;
    const char *help;
    const char *path_name; /* in the help */
    const struct dpt_option *options;
    size_t n_options;
    struct dpt_vocab_options *vocab; /* of the options --tokenizer, --vocab-bpe, --encoder-json,
                                        --tokenizer-json and --any-vocab; NULL: not accepted */
    void *command;                   /* for `set` */

    int at;
    int n_paths; /* dpt_args_read moves the paths to argv[1] … argv[n_paths] */
    bool tokenizer_given;
};

/* Reads the whole command line. Returns -1 if the command is to run, else the exit code: the help
 * or one line about the wrong usage was printed. Files of a tokenizer without --tokenizer select
 * gpt2 or hf. */
int dpt_args_read(struct dpt_args *args);

#endif
