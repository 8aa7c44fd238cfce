/* Loads cuDNN (cudnn_calls.h). */
#include "kernels/cuda/cudnn_calls.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct dpt_cudnn_calls calls;
static bool there;

static bool find_symbol(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static void load_library(void)
{
    char name[32];
    const char *wanted = getenv("DPT_CUDNN");
    if (wanted && strcmp(wanted, "off") == 0)
        return;
    (void)snprintf(name, sizeof name, "libcudnn.so.%d", CUDNN_MAJOR);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    there = true;
#define X(name) there = find_symbol(library, "cudnn" #name, &calls.name) && there;
    DPT_CUDNN_CALLS(X)
#undef X
}

const struct dpt_cudnn_calls *dpt_cudnn_calls(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, load_library);
    return there ? &calls : NULL;
}
