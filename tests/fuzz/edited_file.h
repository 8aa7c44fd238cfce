/* A file that is nearly valid: the bytes of a valid file, of which the input of a fuzz target
 * overwrites, inserts or removes some. */
#ifndef DPT_TESTS_FUZZ_EDITED_FILE_H
#define DPT_TESTS_FUZZ_EDITED_FILE_H

#include "tests/fuzz/fuzz.h"

struct edited_file {
    char *text; /* the valid file */
    size_t bytes;
    int fd;        /* of the edited file; -1: not opened */
    char path[64]; /* of the edited file */
};

/* Reads the valid file `path`, at most 64 KiB. */
void edited_file_open(struct edited_file *file, const char *path);

/* Writes the edited file with `edits` edits, at most 16. */
void edited_file_write(const struct edited_file *file, struct feed *feed, uint32_t edits);

#endif
