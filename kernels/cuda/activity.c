/* Records the work of the CUDA device by CUPTI's Activity API (kernels/device_activity.h).
 *
 * CUPTI asks for buffers and gives them back, filled with records, on threads of its own or in our
 * calls. The buffers are a fixed pool of the process, because CUPTI may keep some at any time. Each
 * record is converted at once, and its buffer is free again. */
#include "kernels/cuda/activity_names.h"
#include "kernels/cuda/activity_records.h"

#include "base/clock.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum {
    BUFFERS = 32,
    BUFFER_BYTES = 1 << 20,
    BUFFER_ALIGN = 4096,
    CALLS_MAX = 1024, /* more functions than the runtime or the driver has */
    RUNTIME = 0,
    DRIVER = 1,
    DOMAINS = 2
};
#define NEVER INT64_MAX

struct dpt_activity {
    /* By CUPTI's number of a function: its name; NULL: calls of it are not recorded. */
    const char *call[DOMAINS][CALLS_MAX];
    struct dpt_activity_names *names;
    struct dpt_device_record *record; /* [room] owned */
    size_t n, room;
    int64_t dropped;
    int64_t first_ns; /* work that began before is not recorded; NEVER: nothing is */
    bool on;
};

/* The process's. The callbacks have no context. */
static struct {
    struct dpt_cupti_calls calls; /* set before the callbacks are registered, and never changed */
    bool loaded;
    pthread_mutex_t mutex;
    /* Under the mutex, which is held in no call of CUPTI. */
    struct dpt_activity *open; /* NULL: none is open */
    uint8_t *memory;           /* of all buffers; never freed */
    uint8_t *spare[BUFFERS];
    int n_spare;
} process = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---- CUPTI's callbacks ---- */

static uint64_t read_clock(void)
{
    return (uint64_t)dpt_now_ns();
}

static void give_buffer(uint8_t **buffer, size_t *size, size_t *records_max)
{
    (void)pthread_mutex_lock(&process.mutex);
    *buffer = process.n_spare > 0 ? process.spare[--process.n_spare] : NULL;
    (void)pthread_mutex_unlock(&process.mutex);
    *size = *buffer ? BUFFER_BYTES : 0; /* without a buffer CUPTI drops the record and counts it */
    *records_max = 0;                   /* as many as fit */
}

static bool is_call(const struct dpt_device_record *record)
{
    return record->kind == DPT_DEVICE_CALL || record->kind == DPT_DEVICE_DRIVER_CALL;
}

/* Adds a record to the open activity. Under the mutex. */
static void add_record(struct dpt_activity *a, const struct dpt_device_record *record)
{
    const int domain = record->kind == DPT_DEVICE_CALL ? RUNTIME : DRIVER;
    const char *name = record->name;
    if (is_call(record))
        name = record->call < CALLS_MAX ? a->call[domain][record->call] : NULL;
    if (!name || a->first_ns == NEVER || (record->begin_ns != 0 && record->begin_ns < a->first_ns))
        return;
    if (record->begin_ns == 0 || record->end_ns < record->begin_ns || a->n == a->room) {
        a->dropped++;
        return;
    }
    a->record[a->n] = *record;
    a->record[a->n++].name = is_call(record) ? name : dpt_activity_name(a->names, name);
}

static void take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                        size_t valid)
{
    CUpti_Activity *next = NULL;
    char name[DPT_WORK_NAME_BYTES];
    struct dpt_device_record record;
    (void)context;
    (void)stream;
    (void)size;
    while (valid > 0 &&
           process.calls.ActivityGetNextRecord(buffer, valid, &next) == CUPTI_SUCCESS) {
        if (!dpt_cupti_convert(next, name, &record))
            continue;
        (void)pthread_mutex_lock(&process.mutex);
        if (process.open)
            add_record(process.open, &record);
        (void)pthread_mutex_unlock(&process.mutex);
    }
    (void)pthread_mutex_lock(&process.mutex);
    DPT_ASSERT(process.n_spare < BUFFERS);
    process.spare[process.n_spare++] = buffer;
    (void)pthread_mutex_unlock(&process.mutex);
}

/* ---- the library ---- */

static const char *remedy_of(CUptiResult code)
{
    switch (code) {
    case CUPTI_ERROR_INSUFFICIENT_PRIVILEGES:
    case CUPTI_ERROR_VIRTUALIZED_DEVICE_INSUFFICIENT_PRIVILEGES:
        return "let users profile (module option NVreg_RestrictProfilingToAdminUsers=0 of the "
               "driver, or the capability CAP_SYS_ADMIN)";
    case CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED:
        return "another profiler has this process (nsys, ncu): run without it";
    case CUPTI_ERROR_NOT_INITIALIZED:
        return "the driver is missing or older than the library: install a driver of this CUDA, or "
               "put an older CUPTI's path into DPT_CUPTI";
    default:
        return "DPT_CUPTI=off in the environment leaves it out";
    }
}

static enum dpt_status fail_by_cupti(CUptiResult code, const char *call, struct dpt_err *err)
{
    const char *text = NULL;
    if (process.calls.GetResultString(code, &text) != CUPTI_SUCCESS || !text)
        text = "an unknown error";
    return dpt_fail(err, DPT_EUNSUPPORTED, "NVIDIA's library CUPTI refuses %s: %s (%d); %s", call,
                    text, (int)code, remedy_of(code));
}

#define TRY_CUPTI(name, ...)                                                                       \
    do {                                                                                           \
        const CUptiResult code_ = process.calls.name(__VA_ARGS__);                                 \
        if (code_ != CUPTI_SUCCESS)                                                                \
            return fail_by_cupti(code_, "cupti" #name, err);                                       \
    } while (0)

/* The calls that post work, wait for it, or allocate. Others come by the thousand and say little,
 * such as cudaSetDevice. */
static bool is_recorded(const char *call)
{
    static const char *const begins[] = {"cudaLaunch",
                                         "cudaGraphLaunch",
                                         "cudaMemcpy",
                                         "cudaMemset",
                                         "cudaStreamSynchronize",
                                         "cudaDeviceSynchronize",
                                         "cudaEventSynchronize",
                                         "cudaEventRecord",
                                         "cudaStreamWaitEvent",
                                         "cudaMalloc",
                                         "cudaFree",
                                         "cudaHostAlloc",
                                         "cuLaunch",
                                         "cuGraphLaunch",
                                         "cuMemcpy",
                                         "cuMemset"};
    for (size_t i = 0; i < sizeof begins / sizeof begins[0]; i++)
        if (strncmp(call, begins[i], strlen(begins[i])) == 0)
            return true;
    return false;
}

/* Stores a function's name without the version of its interface (cudaLaunchKernel_v7000). */
static const char *store_call_name(struct dpt_activity *a, const char *name)
{
    char text[DPT_WORK_NAME_BYTES];
    const char *version = strstr(name, "_v");
    size_t bytes = strlen(name);
    if (version && version[2 + strspn(version + 2, "0123456789")] == '\0')
        bytes = (size_t)(version - name);
    if (bytes >= sizeof text)
        bytes = sizeof text - 1;
    memcpy(text, name, bytes);
    text[bytes] = '\0';
    return dpt_activity_name(a->names, text);
}

static void list_calls(struct dpt_activity *a)
{
    static const CUpti_CallbackDomain domains[DOMAINS] = {
        [RUNTIME] = CUPTI_CB_DOMAIN_RUNTIME_API, [DRIVER] = CUPTI_CB_DOMAIN_DRIVER_API};
    for (int d = 0; d < DOMAINS; d++)
        for (uint32_t i = 1; i < CALLS_MAX; i++) {
            const char *name = NULL;
            if (process.calls.GetCallbackName(domains[d], i, &name) == CUPTI_SUCCESS && name &&
                is_recorded(name))
                a->call[d][i] = store_call_name(a, name);
        }
}

/* Spares CUPTI the records of other calls, where the library can leave them out. */
static void leave_out_calls(const struct dpt_activity *a)
{
    for (uint32_t i = 1; i < CALLS_MAX; i++) {
        if (!a->call[RUNTIME][i] && process.calls.ActivityEnableRuntimeApi)
            (void)process.calls.ActivityEnableRuntimeApi(i, 0);
        if (!a->call[DRIVER][i] && process.calls.ActivityEnableDriverApi)
            (void)process.calls.ActivityEnableDriverApi(i, 0);
    }
    /* A query of an event or a stream that is not done yet is no wait. */
    if (process.calls.ActivityEnableAllSyncRecords)
        (void)process.calls.ActivityEnableAllSyncRecords(0);
}

static void disable_kinds(void)
{
    for (int i = 0; i < DPT_CUPTI_KINDS; i++)
        (void)process.calls.ActivityDisable(dpt_cupti_kinds[i]);
}

static enum dpt_status enable_kinds(struct dpt_err *err)
{
    for (int i = 0; i < DPT_CUPTI_KINDS; i++)
        TRY_CUPTI(ActivityEnable, dpt_cupti_kinds[i]);
    return DPT_OK;
}

static enum dpt_status set_up_library(struct dpt_activity *a, struct dpt_err *err)
{
    /* As the threads of spans, by the system's numbers. */
    TRY_CUPTI(SetThreadIdType, CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM);
#if CUPTI_API_VERSION >= 130000
    /* Buffers for all threads in common: NCCL launches from threads that end after each launch. If
     * this fails, each thread takes a buffer, and records that find none are counted. */
    uint8_t by_thread = 0;
    size_t bytes = sizeof by_thread;
    (void)process.calls.ActivitySetAttribute(CUPTI_ACTIVITY_ATTR_PER_THREAD_ACTIVITY_BUFFER, &bytes,
                                             &by_thread);
#endif
    TRY_CUPTI(ActivityRegisterTimestampCallback, read_clock);
    TRY_CUPTI(ActivityRegisterCallbacks, give_buffer, take_buffer);
    list_calls(a);
    /* Attaches CUPTI to the process now, so that it knows the graphs that are made later. */
    const enum dpt_status status = enable_kinds(err);
    disable_kinds();
    return status;
}

/* ---- open and close ---- */

static void destroy_activity(struct dpt_activity *a)
{
    if (!a)
        return;
    dpt_activity_names_destroy(&a->names);
    free(a->record);
    free(a);
}

static enum dpt_status create_activity(size_t records_max, struct dpt_activity **ret,
                                       struct dpt_err *err)
{
    struct dpt_activity *a = calloc(1, sizeof *a);
    if (!a)
        return dpt_fail_nomem(err, "records of the GPU");
    a->room = records_max;
    a->first_ns = NEVER;
    a->record = calloc(records_max, sizeof *a->record);
    enum dpt_status status = dpt_activity_names_create(&a->names, err);
    if (status == DPT_OK && !a->record)
        status = dpt_fail_nomem(err, "%zu records of the GPU", records_max);
    if (status == DPT_OK)
        *ret = a;
    else
        destroy_activity(a);
    return status;
}

/* Under the mutex. */
static enum dpt_status make_buffers(struct dpt_err *err)
{
    if (process.memory)
        return DPT_OK;
    process.memory = aligned_alloc(BUFFER_ALIGN, (size_t)BUFFERS * BUFFER_BYTES);
    if (!process.memory)
        return dpt_fail_nomem(err, "buffers for records of the GPU");
    for (int i = 0; i < BUFFERS; i++)
        process.spare[process.n_spare++] = process.memory + (size_t)i * BUFFER_BYTES;
    return DPT_OK;
}

/* Makes `a` the activity of the process. */
static enum dpt_status enter_process(struct dpt_activity *a, struct dpt_err *err)
{
    enum dpt_status status = DPT_OK;
    (void)pthread_mutex_lock(&process.mutex);
    if (process.open)
        status = dpt_fail(err, DPT_EEXIST,
                          "another rank of this process records the GPU, and CUPTI records a "
                          "process: start one rank in a process");
    else
        status = make_buffers(err);
    if (status == DPT_OK)
        process.open = a;
    (void)pthread_mutex_unlock(&process.mutex);
    return status;
}

static void leave_process(void)
{
    (void)pthread_mutex_lock(&process.mutex);
    process.open = NULL;
    (void)pthread_mutex_unlock(&process.mutex);
}

/* Only the rank that has entered the process calls it. */
static enum dpt_status load_library(struct dpt_err *err)
{
    if (!process.loaded)
        DPT_TRY(dpt_cupti_load(&process.calls, err));
    process.loaded = true;
    return DPT_OK;
}

enum dpt_status dpt_activity_open(size_t records_max, struct dpt_activity **ret,
                                  struct dpt_err *err)
{
    struct dpt_activity *a = NULL;
    DPT_TRY(create_activity(records_max, &a, err));
    enum dpt_status status = enter_process(a, err);
    if (status != DPT_OK) {
        destroy_activity(a);
        return status;
    }
    status = load_library(err);
    if (status == DPT_OK)
        status = set_up_library(a, err);
    if (status != DPT_OK) {
        leave_process();
        destroy_activity(a);
        return status;
    }
    *ret = a;
    return DPT_OK;
}

void dpt_activity_close(struct dpt_activity **activity)
{
    struct dpt_activity *a = *activity;
    if (!a)
        return;
    dpt_activity_stop(a);
    leave_process();
    destroy_activity(a);
    *activity = NULL;
}

/* ---- a window ---- */

/* The records that CUPTI has dropped since the last call. */
static int64_t count_dropped(void)
{
    size_t dropped = 0;
    return process.calls.ActivityGetNumDroppedRecords(NULL, 0, &dropped) == CUPTI_SUCCESS
               ? (int64_t)dropped
               : 0;
}

void dpt_activity_restart(struct dpt_activity *a)
{
    (void)process.calls.ActivityFlushAll(0);
    (void)count_dropped();
    (void)pthread_mutex_lock(&process.mutex);
    a->n = 0;
    a->dropped = 0;
    a->first_ns = dpt_now_ns();
    (void)pthread_mutex_unlock(&process.mutex);
}

enum dpt_status dpt_activity_start(struct dpt_activity *a, struct dpt_err *err)
{
    const enum dpt_status status = enable_kinds(err);
    if (status != DPT_OK) {
        disable_kinds();
        return status;
    }
    leave_out_calls(a);
    a->on = true;
    dpt_activity_restart(a);
    return DPT_OK;
}

/* Records of work that has no device. */
static void add_devices(struct dpt_activity *a)
{
    uint32_t device = 0;
    for (size_t i = 0; i < a->n && device == 0; i++)
        device = a->record[i].device;
    for (size_t i = 0; i < a->n; i++)
        if (a->record[i].kind == DPT_DEVICE_SYNC)
            a->record[i].device = device;
}

void dpt_activity_stop(struct dpt_activity *a)
{
    if (!a->on)
        return;
    a->on = false;
    disable_kinds();
    (void)process.calls.ActivityFlushAll(0);
    /* Also buffers with work that is under way, whose records then have no end. */
    (void)process.calls.ActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    const int64_t dropped = count_dropped();
    (void)pthread_mutex_lock(&process.mutex);
    a->dropped += dropped;
    a->first_ns = NEVER;
    add_devices(a);
    (void)pthread_mutex_unlock(&process.mutex);
}

void dpt_activity_read(const struct dpt_activity *a, struct dpt_device_records *ret)
{
    (void)pthread_mutex_lock(&process.mutex);
    *ret = (struct dpt_device_records){.record = a->record, .n = a->n, .dropped = a->dropped};
    (void)pthread_mutex_unlock(&process.mutex);
}
