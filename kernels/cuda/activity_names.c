/* Names of kernels and calls (activity_names.h): a hash table of texts in one piece of memory. */
#include "kernels/cuda/activity_names.h"

#include "base/hash.h"
#include "kernels/device_activity.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

enum { PLACES = 8192 /* a power of two */, NAMES_MAX = PLACES / 2, TEXT_BYTES = 2 << 20 };

/* __cxa_demangle of the C++ library: name, memory or NULL, its size, a status. */
typedef char *(*demangler)(const char *, char *, size_t *, int *);

struct name {
    const char *given, *shown; /* NULL: the place is free */
};

struct dpt_activity_names {
    demangler demangle; /* NULL: there is no C++ library */
    int n;
    size_t used;
    struct name place[PLACES];
    char text[TEXT_BYTES];
};

enum dpt_status dpt_activity_names_create(struct dpt_activity_names **ret, struct dpt_err *err)
{
    struct dpt_activity_names *names = calloc(1, sizeof *names);
    if (!names)
        return dpt_fail_nomem(err, "names of kernels");
    /* Its C++ library is in every process that uses cuBLASLt, cuDNN or NCCL. */
    void *library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, "__cxa_demangle") : NULL;
    memcpy(&names->demangle, &found, sizeof found);
    *ret = names;
    return DPT_OK;
}

void dpt_activity_names_destroy(struct dpt_activity_names **names)
{
    free(*names);
    *names = NULL;
}

/* Stores a text of at most bytes_max bytes. NULL: there is no room. */
static char *store_text(struct dpt_activity_names *names, const char *text, size_t bytes_max)
{
    size_t bytes = strlen(text) + 1;
    if (bytes > bytes_max)
        bytes = bytes_max;
    if (bytes > TEXT_BYTES - names->used)
        return NULL;
    char *at = names->text + names->used;
    memcpy(at, text, bytes - 1);
    at[bytes - 1] = '\0';
    names->used += bytes;
    return at;
}

static void replace_escaped(char *text)
{
    for (; *text; text++)
        if (*text == '"' || *text == '\\' || (unsigned char)*text < ' ')
            *text = '_';
}

/* Stores the text that is shown for `name`. */
static char *store_shown(struct dpt_activity_names *names, const char *name)
{
    int status = -1;
    const bool mangled = strncmp(name, "_Z", 2) == 0 && names->demangle;
    char *demangled = mangled ? names->demangle(name, NULL, NULL, &status) : NULL;
    char *shown =
        store_text(names, status == 0 ? demangled : name, (size_t)DPT_ACTIVITY_NAME_BYTES);
    free(demangled);
    if (shown)
        replace_escaped(shown);
    return shown;
}

const char *dpt_activity_name(struct dpt_activity_names *names, const char *name)
{
    static const char no_room[] = "a name without room";
    size_t at = (size_t)dpt_hash128(name, strlen(name)).lo % PLACES;
    while (names->place[at].given && strcmp(names->place[at].given, name) != 0)
        at = (at + 1) % PLACES;
    if (names->place[at].given)
        return names->place[at].shown;
    if (names->n == NAMES_MAX)
        return no_room;
    const char *given = store_text(names, name, TEXT_BYTES), *shown = store_shown(names, name);
    if (!given || !shown)
        return no_room;
    names->place[at] = (struct name){given, shown};
    names->n++;
    return shown;
}
