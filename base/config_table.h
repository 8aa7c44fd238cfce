/* The table of config keys, and the value of one key as text. Only base/config*.c,
 * base/strategy_traits.c, tables that map other names to keys (worker/model/hf_config.c), and tests
 * include this file. */
#ifndef DPT_BASE_CONFIG_TABLE_H
#define DPT_BASE_CONFIG_TABLE_H

#include "base/config.h"
#include "base/config_yaml.h"

enum dpt_key_type {
    DPT_KEY_TEXT,        /* char[size] */
    DPT_KEY_CHOICE,      /* an enum; `choices` */
    DPT_KEY_CHOICE_TEXT, /* char[size] holding the name of one of `choices` */
    DPT_KEY_INT,         /* int */
    DPT_KEY_INT64,       /* int64_t */
    DPT_KEY_UINT64,      /* uint64_t, without range */
    DPT_KEY_DOUBLE,
    DPT_KEY_DOUBLE_PAIR, /* double[2]: [a, b] */
    DPT_KEY_STEPS,       /* struct dpt_config_steps: [a, b, …], ascending */
    DPT_KEY_WORDS, /* int, a set of bits: one of `choices`, or [a, b, …] of nonzero choices */
    DPT_KEY_BOOL,
    DPT_KEY_RANGE /* int[2]: N or "MIN:MAX" */
};

enum {
    DPT_KEY_AUTO = 1,     /* the integer may also be the word auto */
    DPT_KEY_NULL = 2,     /* may be null, which is the text "" or the first choice */
    DPT_KEY_OPEN_MIN = 4, /* the range does not contain its least value */
    DPT_KEY_OPEN_MAX = 8,
    DPT_KEY_ALIAS = 16,    /* sets other keys and is not compared itself */
    DPT_KEY_ANY_ORDER = 32 /* the numbers of DPT_KEY_STEPS need not ascend */
};

/* One word that a key accepts. */
struct dpt_choice {
    const char *name; /* NULL ends the list */
    int value;
};

struct dpt_key {
    const char *path; /* "train.steps", or "seed" at the root */
    enum dpt_key_type type;
    unsigned flags;
    size_t offset, size; /* of the member in struct dpt_config */
    double min, max;     /* range of a number; both are in the range unless OPEN */
    const struct dpt_choice *choices;
    const char *def; /* the default as in YAML, without quotes */
    const char *help;
    enum dpt_config_scope scope;
};

#define DPT_CONFIG_RUN_STEPS_MAX 1e12

enum { DPT_CONFIG_VALUE_BYTES = 4 * DPT_CONFIG_PATH_BYTES };

extern const struct dpt_key dpt_config_keys[];
extern const size_t dpt_config_n_keys;
enum { DPT_CONFIG_KEYS_MAX = 192 };

/* A message shows at most this many bytes of a user's text. */
enum { DPT_CONFIG_SHOWN_BYTES = 60 };

/* The index of the key with this path; dpt_config_n_keys if no key has it. */
size_t dpt_config_key_index(const char *path);

/* The key with this path. Such a key must exist. */
const struct dpt_key *dpt_config_key(const char *path);

/* Sets one key from a value of the config's text. The error names the expected value, but not path
 * and position. */
DPT_MUST_USE enum dpt_status dpt_config_key_parse(const struct dpt_key *key,
                                                  const struct dpt_yaml_pair *pair,
                                                  struct dpt_config *config, struct dpt_err *err);

/* Sets one key from a text, as in --set KEY=text. Errors of the text's YAML name `source`. */
DPT_MUST_USE enum dpt_status dpt_config_key_parse_text(const struct dpt_key *key, const char *text,
                                                       const char *source,
                                                       struct dpt_config *config,
                                                       struct dpt_err *err);

/* The defaults of the table, which still contain auto. Any thread. */
const struct dpt_config *dpt_config_table_defaults(void);

/* Sets one key to its default. */
void dpt_config_key_reset(const struct dpt_key *key, struct dpt_config *config);

/* One key's value as YAML, which dpt_config_key_parse_text reads back to the same value. */
void dpt_config_key_format(const struct dpt_key *key, const struct dpt_config *config,
                           char ret_text[DPT_CONFIG_VALUE_BYTES]);

/* The values that a key accepts, for messages and help: "integer: 1 … 8, auto". */
enum { DPT_CONFIG_TAKES_BYTES = 512 };
void dpt_config_key_takes(const struct dpt_key *key, char ret_text[DPT_CONFIG_TAKES_BYTES]);

/* The words that a key accepts: "fp32", "constant, linear, cosine". */
void dpt_config_key_choices(const struct dpt_key *key, char *ret_text, size_t text_bytes);

/* The word of a choice key's value. */
const struct dpt_choice *dpt_config_key_choice(const struct dpt_key *key,
                                               const struct dpt_config *config);

/* The source of a key's value, for errors. */
struct dpt_config_origin {
    int line, column; /* position in the file; 0: the file does not give the value */
    int override;     /* index of the --set that gives the value; -1: none */
    bool sizes;       /* the value is from input->sizes */
};

/* A config being loaded. */
struct dpt_config_load {
    const struct dpt_config_input *input;
    struct dpt_config config;
    struct dpt_config_origin origin[DPT_CONFIG_KEYS_MAX];
};

/* Whether `path` is a section ("train"). */
bool dpt_config_is_section(const char *path);

/* Whether configs of other programs have a key with this path that is not a key here. The text is a
 * sentence that begins with the path and names the key to use here. */
enum { DPT_CONFIG_FOREIGN_BYTES = 384 };
bool dpt_config_foreign_key(const char *path, char ret_text[DPT_CONFIG_FOREIGN_BYTES]);

/* Fails with DPT_ECONFIG: `path` is not a key. The error names the nearest key. */
enum dpt_status dpt_config_fail_unknown(const char *path, struct dpt_err *err);

/* Whether the file, --set or input->sizes gives the key. */
bool dpt_config_given(const struct dpt_config_load *load, const char *path);

/* Fails with DPT_ECONFIG and the key's position, its path and the text. */
enum dpt_status dpt_refuse_key(const struct dpt_config_load *load, const char *path,
                               struct dpt_err *err, const char *fmt, ...) DPT_PRINTF(4, 5);

/* Like dpt_refuse_key, for a combination of two keys, which the text names. The position is that of
 * the key that was given last. */
enum dpt_status dpt_refuse_both(const struct dpt_config_load *load, const char *path,
                                const char *other, struct dpt_err *err, const char *fmt, ...)
    DPT_PRINTF(5, 6);

/* Puts the position of `origin` before an error, and makes it DPT_ECONFIG. */
enum dpt_status dpt_config_wrap_origin(const struct dpt_config_load *load,
                                       const struct dpt_config_origin *origin, struct dpt_err *err);

/* Write the multiples of `of` next to `n`, as "28 or 32"; and the divisors of `n` next to `by`, as
 * "3 or 5". `n` is not a multiple of `of`, and `by` is not a divisor of `n`. */
enum { DPT_CONFIG_NEAREST_BYTES = 64 };
void dpt_config_nearest_multiples(int n, int of, char ret_text[DPT_CONFIG_NEAREST_BYTES]);
void dpt_config_nearest_divisors(int n, int by, char ret_text[DPT_CONFIG_NEAREST_BYTES]);

/* Sets the keys of input->sizes that the config does not give. If the sizes are binding, compares
 * them with the keys that it gives. DPT_ECONFIG: a contradiction, or a value out of the key's
 * range. */
DPT_MUST_USE enum dpt_status dpt_config_take_sizes(struct dpt_config_load *load,
                                                   struct dpt_err *err);

/* Set the keys that follow from a preset or another key. The last three functions set those of one
 * section. */
void dpt_config_resolve(struct dpt_config_load *load);
void dpt_config_resolve_model(struct dpt_config_load *load);
void dpt_config_resolve_images(struct dpt_config_load *load);
void dpt_config_resolve_strategy(struct dpt_config_load *load);

/* The first of the `n` keys that does not have its default value; NULL: all have it. */
const char *dpt_config_first_changed(const struct dpt_config_load *load, const char *const *paths,
                                     size_t n);

/* For a ResNet: set the sizes of a preset, set the sizes that follow from other sizes, and refuse
 * impossible combinations. */
void dpt_config_fill_resnet(struct dpt_config_load *load, const char *preset);
void dpt_config_resolve_resnet(struct dpt_config_load *load);
DPT_MUST_USE enum dpt_status dpt_config_check_resnet(const struct dpt_config_load *load,
                                                     struct dpt_err *err);

/* DPT_ECONFIG: an impossible combination of keys. */
DPT_MUST_USE enum dpt_status dpt_config_check(const struct dpt_config_load *load,
                                              struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_config_check_model(const struct dpt_config_load *load,
                                                    struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_config_check_images(const struct dpt_config_load *load,
                                                     struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_config_check_strategy(const struct dpt_config_load *load,
                                                       struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_config_check_lora(const struct dpt_config_load *load,
                                                   struct dpt_err *err);
DPT_MUST_USE enum dpt_status dpt_config_check_classes(const struct dpt_config_load *load,
                                                      struct dpt_err *err);

#endif
