/* A file that is nearly right: what it holds, with bytes overwritten, put in or left out as the
 * input of a fuzz target says. */
#ifndef DPT_TESTS_FUZZ_EDITED_FILE_H
#define DPT_TESTS_FUZZ_EDITED_FILE_H

#include "tests/fuzz/fuzz.h"

struct edited_file {
    char *text; /* as it is right */
    size_t bytes;
    int fd;        /* as it is given to be read; -1: not opened */
    char path[64]; /* of that */
};

/* Reads `path`, of 64 KiB at most. */
void edited_file_open(struct edited_file *file, const char *path);

/* Writes it with so many edits, 16 at most. */
void edited_file_write(const struct edited_file *file, struct feed *feed, uint32_t edits);

#endif
