/* What the tests of images share: a config, a folder of its own for each test, files in it, and
 * what is read or refused. */
#ifndef DPT_TESTS_WORKER_DATA_IMAGES_FIXTURE_H
#define DPT_TESTS_WORKER_DATA_IMAGES_FIXTURE_H

#include "worker/data/data.h"

enum { PLANE = 1024, MICRO = 2, SLOTS = 3 };

extern char root[128];
extern struct dpt_err err;
extern struct dpt_config config; /* of CIFAR-10, until use_folder */

int setup(void **state);
int teardown(void **state);

/* ROOT/PATH. */
void name(char ret[DPT_CONFIG_PATH_BYTES], const char *path);

void write_file(const char *path, const void *bytes, size_t n);
void make_folder(const char *path);
/* A recorded file under another name; its first 300 bytes. */
void copy_image(const char *recorded, const char *path);
void cut_image(const char *recorded, const char *path);

/* Makes a folder of three classes, with two, one and two images, and names it as the config's data
 * of `key`, train or val. */
void use_folder(const char *path, const char *key);

struct dpt_data *open_data(void);

/* The data's names of classes are these, `n` of them; NULL: it has none. */
void expect_names(const char *const *names, int n);
struct dpt_data_digest digest_of(void);

struct sample {
    float pixels[3 * PLANE];
    int32_t label;
};

void read_sample(const struct dpt_data *data, int64_t index, int64_t number, struct sample *ret);

/* The error is `why`, in one line, where "ROOT" stands for the root. */
void expect_text(const char *why);

/* Both the data and their digest are refused so. */
void refused(enum dpt_status status, const char *why);

#endif
