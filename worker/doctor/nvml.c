/* NVIDIA's management library, opened at run time (nvml.h). Types and names are those of its
 * documented interface (NVML API Reference): handles are pointers, and nvmlPciInfo_t begins with
 * the old bus id, six numbers and the bus id. */
#include "worker/doctor/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { P2P_READ = 0, OLD_BUS_BYTES = 16 };

/* nvmlPciInfo_t of nvmlDeviceGetPciInfo_v3 and nvmlDeviceGetNvLinkRemotePciInfo_v2. */
struct pci_info {
    char old_bus[OLD_BUS_BYTES];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[DPT_NVML_BUS_BYTES];
};

struct dpt_nvml {
    void *library;
    struct dpt_nvml_calls calls;
    int (*init)(void);
    int (*shutdown)(void);
    int (*get_count)(unsigned *);
    int (*get_handle)(unsigned, void **);
    int (*get_pci)(void *, struct pci_info *);
    int (*get_name)(void *, char *, unsigned);
    int (*get_link_state)(void *, unsigned, unsigned *);
    int (*get_link_pci)(void *, unsigned, struct pci_info *);
    int (*get_p2p)(void *, void *, int, int *);
};

static int call_count(void *ctx, unsigned *ret)
{
    const struct dpt_nvml *nvml = ctx;
    return nvml->get_count(ret);
}

static int call_bus(void *ctx, unsigned gpu, char ret[DPT_NVML_BUS_BYTES])
{
    const struct dpt_nvml *nvml = ctx;
    struct pci_info info;
    void *handle = NULL;
    memset(&info, 0, sizeof info);
    int error = nvml->get_handle(gpu, &handle);
    if (error == 0)
        error = nvml->get_pci(handle, &info);
    (void)snprintf(ret, DPT_NVML_BUS_BYTES, "%.*s", DPT_NVML_BUS_BYTES - 1, info.bus_id);
    return error;
}

static int call_name(void *ctx, unsigned gpu, char ret[DPT_NVML_NAME_BYTES])
{
    const struct dpt_nvml *nvml = ctx;
    void *handle = NULL;
    const int error = nvml->get_handle(gpu, &handle);
    return error != 0 ? error : nvml->get_name(handle, ret, DPT_NVML_NAME_BYTES);
}

static int call_link_up(void *ctx, unsigned gpu, unsigned link, bool *ret)
{
    const struct dpt_nvml *nvml = ctx;
    void *handle = NULL;
    unsigned state = 0;
    int error = nvml->get_handle(gpu, &handle);
    if (error == 0)
        error = nvml->get_link_state(handle, link, &state);
    *ret = error == 0 && state == 1;
    return error;
}

static int call_link_bus(void *ctx, unsigned gpu, unsigned link, char ret[DPT_NVML_BUS_BYTES])
{
    const struct dpt_nvml *nvml = ctx;
    struct pci_info info;
    void *handle = NULL;
    memset(&info, 0, sizeof info);
    int error = nvml->get_handle(gpu, &handle);
    if (error == 0)
        error = nvml->get_link_pci(handle, link, &info);
    (void)snprintf(ret, DPT_NVML_BUS_BYTES, "%.*s", DPT_NVML_BUS_BYTES - 1, info.bus_id);
    return error;
}

static int call_p2p(void *ctx, unsigned gpu, unsigned other, int *ret)
{
    const struct dpt_nvml *nvml = ctx;
    void *a = NULL, *b = NULL;
    int error = nvml->get_handle(gpu, &a);
    if (error == 0)
        error = nvml->get_handle(other, &b);
    return error != 0 ? error : nvml->get_p2p(a, b, P2P_READ, ret);
}

/* Finds the functions. Returns the name of the first that is missing; NULL: all are there. */
static const char *find_functions(struct dpt_nvml *nvml)
{
    const struct {
        const char *name;
        void *at; /* a pointer to a function */
    } table[] = {{"nvmlInit_v2", &nvml->init},
                 {"nvmlShutdown", &nvml->shutdown},
                 {"nvmlDeviceGetCount_v2", &nvml->get_count},
                 {"nvmlDeviceGetHandleByIndex_v2", &nvml->get_handle},
                 {"nvmlDeviceGetPciInfo_v3", &nvml->get_pci},
                 {"nvmlDeviceGetName", &nvml->get_name},
                 {"nvmlDeviceGetNvLinkState", &nvml->get_link_state},
                 {"nvmlDeviceGetNvLinkRemotePciInfo_v2", &nvml->get_link_pci},
                 {"nvmlDeviceGetP2PStatus", &nvml->get_p2p}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        void *function = dlsym(nvml->library, table[i].name);
        if (!function)
            return table[i].name;
        memcpy(table[i].at, &function, sizeof function); /* POSIX: a function fits into a void * */
    }
    return NULL;
}

static enum dpt_status start_library(struct dpt_nvml *nvml, struct dpt_err *err)
{
    nvml->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!nvml->library)
        return dpt_fail(err, DPT_ENOENT, "libnvidia-ml.so.1 is not installed (%s)", dlerror());
    const char *missing = find_functions(nvml);
    if (missing)
        return dpt_fail(err, DPT_EVERSION, "libnvidia-ml.so.1 has no %s: it is too old", missing);
    const int error = nvml->init();
    if (error != 0)
        return dpt_fail(err, DPT_EDEVICE,
                        "nvmlInit_v2 failed with error %d (is the driver loaded?)", error);
    return DPT_OK;
}

enum dpt_status dpt_nvml_open(struct dpt_nvml **ret, struct dpt_err *err)
{
    struct dpt_nvml *nvml = calloc(1, sizeof *nvml);
    if (!nvml)
        return dpt_fail_nomem(err, "NVML");
    const enum dpt_status status = start_library(nvml, err);
    if (status != DPT_OK) {
        nvml->shutdown = NULL; /* it was not started */
        dpt_nvml_close(&nvml);
        return status;
    }
    nvml->calls = (struct dpt_nvml_calls){.count = call_count,
                                          .bus = call_bus,
                                          .name = call_name,
                                          .link_up = call_link_up,
                                          .link_bus = call_link_bus,
                                          .p2p = call_p2p,
                                          .ctx = nvml};
    *ret = nvml;
    return DPT_OK;
}

void dpt_nvml_close(struct dpt_nvml **nvml_p)
{
    struct dpt_nvml *nvml = *nvml_p;
    *nvml_p = NULL;
    if (!nvml)
        return;
    if (nvml->shutdown)
        (void)nvml->shutdown();
    if (nvml->library)
        (void)dlclose(nvml->library);
    free(nvml);
}

const struct dpt_nvml_calls *dpt_nvml_calls(const struct dpt_nvml *nvml)
{
    return &nvml->calls;
}
