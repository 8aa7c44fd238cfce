/* Reads the tokenizer of a shard from the record beside it, dpt-data.json. */
#ifndef DPT_WORKER_DATA_PREPARE_RECORD_H
#define DPT_WORKER_DATA_PREPARE_RECORD_H

#include "worker/data/tokenizer.h"

struct dpt_record {
    char tokenizer[8]; /* "bytes", "gpt2", "hf"; "": not known */
    int vocab;         /* tokens that the tokenizer has; 0: not known */
};

/* Looks for the record in the folder of the file `path`. */
void dpt_record_look(const char *path, struct dpt_record *ret);

#endif
