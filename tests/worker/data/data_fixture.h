/* A folder of data files, and the config that reads them. */
#ifndef DPT_TESTS_WORKER_DATA_DATA_FIXTURE_H
#define DPT_TESTS_WORKER_DATA_DATA_FIXTURE_H

#include "base/hash.h"
#include "worker/data/data.h"

enum { SEQ = 8, MAGIC16 = 20240520, MAGIC32 = 20240801 };

extern char root[128];
extern struct dpt_err err;
extern struct dpt_config config;

struct shard {
    int32_t magic, version, tokens;
    int width;
    uint32_t first; /* the first token; each next token is larger by one */
    int64_t bytes;  /* of the file; -1: the length in the header */
};

int setup(void **state);
int teardown(void **state);
void use(enum dpt_data_kind kind, const char *name);
void write_file(const char *name, const void *data, size_t bytes);
void use_tiny(void);
void write_shard(const char *name, struct shard shard);
struct dpt_data *open_data(void);
enum dpt_status read_sample(const struct dpt_data *data, int64_t index, int32_t *ret_tokens,
                            int32_t *ret_targets);
void expect_sample(const struct dpt_data *data, int64_t index, int32_t first);
void expect_refusal(enum dpt_status status, const char *name, const char *why);
void make_digest(char ret_hex[DPT_HASH_HEX_BYTES]);

#endif
