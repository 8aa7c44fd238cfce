/* Shared by the tests of images: a config, a separate folder for each test, files in it, and checks
 * of samples and refusals. */
#ifndef DPT_TESTS_WORKER_DATA_IMAGES_FIXTURE_H
#define DPT_TESTS_WORKER_DATA_IMAGES_FIXTURE_H

#include "worker/data/data.h"

enum { PLANE = 1024, MICRO = 2, SLOTS = 3 };

extern char root[128];
extern struct dpt_err err;
extern struct dpt_config config; /* for CIFAR-10 until use_folder */

int setup(void **state);
int teardown(void **state);

/* ret = "ROOT/PATH", ROOT being `root`. */
void name(char ret[DPT_CONFIG_PATH_BYTES], const char *path);

void write_file(const char *path, const void *bytes, size_t n);
void make_folder(const char *path);
/* copy_image copies a recorded file to `path`, cut_image its first 300 bytes. */
void copy_image(const char *recorded, const char *path);
void cut_image(const char *recorded, const char *path);

/* Makes a folder of three classes with two, one and two images, and sets the config's data.train or
 * data.val (`key`: "train" or "val") to it. */
void use_folder(const char *path, const char *key);

struct dpt_data *open_data(void);

/* Checks that the data's class names are these `n`; NULL: that it has none. */
void expect_names(const char *const *names, int n);
struct dpt_data_digest digest_of(void);

struct sample {
    float pixels[3 * PLANE];
    int32_t label;
};

void read_sample(const struct dpt_data *data, int64_t index, int64_t number, struct sample *ret);

/* Checks that the last error is the one line `why`, in which "ROOT" stands for the root. */
void expect_text(const char *why);

/* Checks that opening the data and making their digest both fail with this status and error. */
void refused(enum dpt_status status, const char *why);

#endif
