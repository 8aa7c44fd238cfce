/* Descriptors of the cuDNN double: its graph API (cudnn_double.c) stores them, its operations
 * (cudnn_double_ops.c) read them. */
#ifndef DPT_TESTS_GPU_EMULATED_CUDNN_DOUBLE_H
#define DPT_TESTS_GPU_EMULATED_CUDNN_DOUBLE_H

#include "kernels/cuda/cudnn_calls.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { VALUES_BYTES = 1024 };

#define MUST(cond)                                                                                 \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            (void)fprintf(stderr, "cuDNN's double: not so: %s\n", #cond);                          \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

struct attribute {
    int64_t count;
    unsigned char values[VALUES_BYTES];
};

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finalized;
    struct attribute of[CUDNN_ATTR_COUNT];
};

/* The value of an attribute, which must be set: raw values, a descriptor, one number, numbers, a
 * flag, a factor. */
const void *double_get(const struct descriptor *d, cudnnBackendAttributeName_t name);
struct descriptor *double_child(const struct descriptor *d, cudnnBackendAttributeName_t name);
int64_t double_number(const struct descriptor *d, cudnnBackendAttributeName_t name);
const int64_t *double_numbers(const struct descriptor *d, cudnnBackendAttributeName_t name);
bool double_flag(const struct descriptor *d, cudnnBackendAttributeName_t name);
float double_factor(const struct descriptor *d, cudnnBackendAttributeName_t name);

/* Runs the graph's operations in order on the memory of the variant pack. */
void double_execute(const struct descriptor *graph, const struct descriptor *pack);

#endif
