/* Loads CUPTI (cupti_calls.h). */
#include "kernels/cuda/cupti_calls.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    /* From 13.0 on the version is xxyyzz, and xx is CUDA's major version; before, a small number.
     */
    VERSIONS_OF_MAJOR = 10000,
    FIRST_MAJOR = 12,
    REASON_BYTES = 256
};

static unsigned major_of(unsigned version)
{
    return version < VERSIONS_OF_MAJOR ? FIRST_MAJOR : version / VERSIONS_OF_MAJOR;
}

static enum dpt_status fail_absent(const char *why, struct dpt_err *err)
{
    return dpt_fail(err, DPT_EUNSUPPORTED,
                    "NVIDIA's library CUPTI cannot be loaded (%s): install the package "
                    "cuda-cupti-%u-%u of NVIDIA or nvidia-cuda-cupti of PyPI, and put the folder "
                    "of libcupti.so.%u on LD_LIBRARY_PATH or the file's path into DPT_CUPTI",
                    why, major_of(CUPTI_API_VERSION), CUPTI_API_VERSION / 100 % 100,
                    major_of(CUPTI_API_VERSION));
}

/* Opens libcupti.so.MAJOR where the loader finds it, else where CUDA's packages put it. */
static void *open_found(char reason[REASON_BYTES])
{
    static const char *const folders[] = {"", "/usr/local/cuda/lib64/",
                                          "/usr/local/cuda/extras/CUPTI/lib64/"};
    char path[PATH_MAX];
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof folders / sizeof folders[0]; i++) {
        (void)snprintf(path, sizeof path, "%slibcupti.so.%u", folders[i],
                       major_of(CUPTI_API_VERSION));
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library && i == 0)
            (void)snprintf(reason, REASON_BYTES, "%s", dlerror());
    }
    return library;
}

static enum dpt_status open_library(void **ret, struct dpt_err *err)
{
    const char *wanted = getenv("DPT_CUPTI");
    char reason[REASON_BYTES];
    if (wanted && strcmp(wanted, "off") == 0)
        return dpt_fail(err, DPT_EUNSUPPORTED, "DPT_CUPTI=off forbids NVIDIA's library CUPTI");
    if (wanted && wanted[0]) {
        *ret = dlopen(wanted, RTLD_NOW | RTLD_LOCAL);
        if (!*ret)
            (void)snprintf(reason, sizeof reason, "%s", dlerror());
    } else {
        *ret = open_found(reason);
    }
    return *ret ? DPT_OK : fail_absent(reason, err);
}

static bool find_symbol(void *library, const char *name, void *to)
{
    void *found = dlsym(library, name);
    memcpy(to, &found, sizeof found);
    return found != NULL;
}

static enum dpt_status check_version(const struct dpt_cupti_calls *calls, struct dpt_err *err)
{
    uint32_t version = 0;
    if (calls->GetVersion(&version) != CUPTI_SUCCESS ||
        major_of(version) != major_of(CUPTI_API_VERSION)) {
        char reason[REASON_BYTES];
        (void)snprintf(reason, sizeof reason, "the library is of CUDA %u, this program of CUDA %u",
                       major_of(version), major_of(CUPTI_API_VERSION));
        return fail_absent(reason, err);
    }
    return DPT_OK;
}

enum dpt_status dpt_cupti_load(struct dpt_cupti_calls *ret, struct dpt_err *err)
{
    struct dpt_cupti_calls calls;
    void *library = NULL;
    const char *missing = NULL;
    DPT_TRY(open_library(&library, err));
#define X(name)                                                                                    \
    if (!find_symbol(library, "cupti" #name, &calls.name))                                         \
        missing = "it has no cupti" #name;
    DPT_CUPTI_CALLS(X)
#undef X
    if (missing)
        return fail_absent(missing, err);
#define X(name) (void)find_symbol(library, "cupti" #name, &calls.name);
    DPT_CUPTI_OPTIONAL_CALLS(X)
#undef X
    DPT_TRY(check_version(&calls, err));
    *ret = calls;
    return DPT_OK;
}
