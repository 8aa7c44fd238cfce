/* See emulated.h. */
#include "tests/gpu/emulated/emulated.h"

#include "kernels/cuda/load.h"
#include "tests/gpu/emulated/control.h"
#include "tests/gpu/emulated/include/cuda_runtime_api.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <vector>

__thread struct emulated_places emulated_place;

static const struct emulated_observer *observer;

namespace {

enum { STACK_BYTES = 128 << 10 };

enum class state { free, runs, awaits_block, awaits_warp };

/* A stack (makecontext's, left and entered again by _setjmp and _longjmp, which ask nothing of the
 * kernel) that runs threads of the block, one after another: one that waits keeps its stack, and
 * others go on with the threads that have not begun. */
struct fiber {
    ucontext_t context; /* of its beginning */
    jmp_buf at;
    bool entered;
    void *stack;
    enum state state;
    unsigned thread;
    unsigned exchanges; /* of its thread so far */
};

struct machine {
    std::vector<fiber *> fibers, idle; /* all; those that run no thread */
    fiber *of[EMULATED_THREADS_MAX];    /* the stack of a thread that has begun and not ended */
    fiber *ready[EMULATED_THREADS_MAX]; /* threads that go on next */
    jmp_buf scheduler;
    const std::function<void()> *kernel;
    unsigned threads, begun, done;
    fiber *now;
    std::vector<unsigned char> shared;
    uint64_t exchanged[2][EMULATED_THREADS_MAX];
    alignas(16) unsigned char gathered[2][EMULATED_THREADS_MAX * EMULATED_GATHERED_BYTES_MAX];
    unsigned
        alive[EMULATED_THREADS_MAX / EMULATED_WARP]; /* threads of a warp that have not ended */
    bool backwards;

    ~machine()
    {
        for (fiber *f : fibers) {
            (void)munmap(f->stack, STACK_BYTES);
            delete f;
        }
    }
};

/* This thread's, while a kernel runs. */
__thread machine *m;

[[noreturn]] void fail(const char *what)
{
    (void)fprintf(stderr, "emulated device: %s (block %u of %u, thread %u)\n", what,
                  emulated_place.block.x, emulated_place.grid.x, m && m->now ? m->now->thread : 0);
    abort();
}

unsigned warp_of(unsigned thread)
{
    return thread / EMULATED_WARP;
}

/* The k-th thread to begin; odd blocks begin with the last. */
unsigned thread_at(unsigned k)
{
    return m->backwards ? m->threads - 1 - k : k;
}

void wait_as(enum state state)
{
    fiber *self = m->now;
    self->state = state;
    if (_setjmp(self->at) == 0)
        _longjmp(m->scheduler, 1);
}

void fiber_main()
{
    fiber *self = m->now;
    for (;;) {
        while (m->begun < m->threads) {
            self->thread = thread_at(m->begun++);
            self->exchanges = 0;
            m->of[self->thread] = self;
            emulated_place.thread = dim3(self->thread, 0, 0);
            (*m->kernel)();
            m->of[self->thread] = NULL;
            m->done++;
            m->alive[warp_of(self->thread)]--;
        }
        m->idle.push_back(self);
        wait_as(state::free);
    }
}

fiber *make_fiber()
{
    fiber *f = new fiber{};
    f->stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->stack == MAP_FAILED || getcontext(&f->context) != 0)
        fail("no memory for a thread");
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK_BYTES;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
    f->state = state::free;
    m->fibers.push_back(f);
    return f;
}

void resume(fiber *f)
{
    f->state = state::runs;
    m->now = f;
    emulated_place.thread = dim3(f->thread, 0, 0);
    if (_setjmp(m->scheduler) == 0) {
        if (f->entered)
            _longjmp(f->at, 1);
        f->entered = true;
        (void)setcontext(&f->context);
    }
    m->now = NULL;
}

/* Every thread of the block has begun, and waits or has ended: lets those go on that may. */
void release()
{
    unsigned waiting[2] = {}, in_warp[EMULATED_THREADS_MAX / EMULATED_WARP] = {}, n = 0;
    for (unsigned t = 0; t < m->threads; t++) {
        if (!m->of[t])
            continue;
        const bool in_exchange = m->of[t]->state == state::awaits_warp;
        waiting[in_exchange]++;
        in_warp[warp_of(t)] += in_exchange;
    }
    const bool all_in_barrier = waiting[1] == 0 && waiting[0] == m->threads - m->done;
    for (unsigned k = 0; k < m->threads; k++) {
        const unsigned t = thread_at(k);
        if (m->of[t] && (all_in_barrier || (m->of[t]->state == state::awaits_warp &&
                                            in_warp[warp_of(t)] == m->alive[warp_of(t)])))
            m->ready[n++] = m->of[t];
    }
    if (n == 0)
        fail("threads wait for others that do not come: a barrier that not all reach");
    m->backwards = !m->backwards;
    for (unsigned i = 0; i < n; i++)
        resume(m->ready[i]);
}

void run_block()
{
    m->begun = m->done = 0;
    m->backwards = emulated_place.block.x % 2 == 1;
    memset(m->alive, 0, sizeof m->alive);
    for (unsigned t = 0; t < m->threads; t++)
        m->alive[warp_of(t)]++;
    memset(m->shared.data(), 0xff, m->shared.size()); /* NaN */
    while (m->begun < m->threads) {
        const bool backwards = m->backwards; /* until all have begun */
        fiber *next = m->idle.empty() ? make_fiber() : m->idle.back();
        if (!m->idle.empty())
            m->idle.pop_back();
        resume(next);
        m->backwards = backwards;
    }
    while (m->done < m->threads)
        release();
}

} // namespace

int emulated_shared_bytes_max(void)
{
    const char *text = getenv("DPT_EMULATED_SHARED_BYTES");
    return text ? atoi(text) : EMULATED_SHARED_BYTES_MAX;
}

void emulated_launch(dim3 grid, unsigned block, size_t shared_bytes,
                     const std::function<void()> &kernel)
{
    if (block == 0 || block > EMULATED_THREADS_MAX ||
        shared_bytes > (size_t)emulated_shared_bytes_max() || grid.x == 0 || grid.y == 0 ||
        grid.z == 0)
        fail("a launch that no device takes");
    static thread_local machine own;
    m = &own;
    m->kernel = &kernel;
    m->threads = block;
    m->shared.resize(shared_bytes);
    emulated_place.grid = grid;
    emulated_place.block_size = dim3(block);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                emulated_place.block = dim3(x, y, z);
                run_block();
            }
    if (observer)
        observer->kernel(grid.x, block, shared_bytes);
}

void emulated_observe(const struct emulated_observer *of_work)
{
    observer = of_work;
}

void *emulated_shared(void)
{
    return m->shared.data();
}

void emulated_await_block(void)
{
    wait_as(state::awaits_block);
}

uint64_t emulated_exchange(unsigned mask, uint64_t x, int other)
{
    fiber *self = m->now;
    const unsigned thread = self->thread, turn = self->exchanges++ % 2;
    if (mask != 0xffffffffu || (thread ^ (unsigned)other) >= m->threads)
        fail("an exchange with lanes that are not there");
    /* Two turns: a thread that has passed one may reach the next before the others have read. */
    m->exchanged[turn][thread] = x;
    wait_as(state::awaits_warp);
    return m->exchanged[turn][thread ^ (unsigned)other];
}

const void *emulated_gather(const void *mine, size_t bytes)
{
    fiber *self = m->now;
    const unsigned thread = self->thread, first = thread - thread % EMULATED_WARP,
                   turn = self->exchanges++ % 2;
    if (bytes > EMULATED_GATHERED_BYTES_MAX || first + EMULATED_WARP > m->threads)
        fail("a product of lanes that are not there");
    memcpy(m->gathered[turn] + thread * bytes, mine, bytes);
    wait_as(state::awaits_warp);
    return m->gathered[turn] + first * bytes;
}

/* ---- the runtime ---- */

extern "C" {

/* Of a host's compiler kernels are functions: there is nothing to load (kernels/cuda/load.h). */
static int refuses_loading;

void emulated_refuse_loading(int refuse)
{
    refuses_loading = refuse;
}

int dpt_cuda_load_kernels(const char **ret_name)
{
    if (!refuses_loading)
        return cudaSuccess;
    *ret_name = "a_kernel";
    return cudaErrorMemoryAllocation;
}

const char *cudaGetErrorName(cudaError_t code)
{
    return code == cudaSuccess ? "cudaSuccess" : "cudaErrorEmulated";
}

const char *cudaGetErrorString(cudaError_t code)
{
    return code == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulated device";
}

static thread_local cudaError_t last_error = cudaSuccess;

cudaError_t emulated_error(cudaError_t code)
{
    if (code != cudaSuccess)
        last_error = code;
    return code;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}

cudaError_t cudaGetDeviceCount(int *ret)
{
    *ret = 1;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *ret)
{
    *ret = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *ret, int attribute, int device)
{
    if (device != 0)
        return cudaErrorInvalidValue;
    *ret = attribute == cudaDevAttrMultiProcessorCount ? 1 : emulated_shared_bytes_max();
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int device)
{
    if (device != 0)
        return cudaErrorInvalidValue;
    *ret = cudaDeviceProp{"emulated device", 9, 0, 1};
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *ret, int bytes, int device)
{
    (void)snprintf(ret, (size_t)bytes, "0000:%02X:00.0", device);
    return cudaSuccess;
}

/* There is one device. */
cudaError_t cudaDeviceCanAccessPeer(int *ret, int device, int peer)
{
    *ret = 0;
    return device == 0 && peer == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *ret)
{
    *ret = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    return device == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
    const size_t aligned = (bytes + 255) / 256 * 256;
    *ret = aligned >= bytes ? aligned_alloc(256, aligned) : NULL;
    if (!*ret)
        return cudaErrorMemoryAllocation;
    memset(*ret, 0xff, aligned);
    return cudaSuccess;
}

cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    (void)flags;
    return cudaMalloc(ret, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, int kind, void *queue)
{
    (void)kind;
    (void)queue;
    memcpy(dst, src, bytes);
    if (observer)
        observer->copy(bytes);
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, void *queue)
{
    (void)queue;
    memset(p, value, bytes);
    if (observer)
        observer->set(bytes);
    return cudaSuccess;
}

enum { LEAST = 0, GREATEST = -5 };

struct emulated_queue {
    int priority;
};

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    *ret_least = LEAST;
    *ret_greatest = GREATEST;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
    (void)flags;
    if (priority < GREATEST || priority > LEAST)
        return cudaErrorInvalidValue;
    *ret = (cudaStream_t)malloc(sizeof **ret);
    if (!*ret)
        return cudaErrorMemoryAllocation;
    (*ret)->priority = priority;
    return cudaSuccess;
}

int emulated_priority(const void *queue)
{
    return ((const struct emulated_queue *)queue)->priority;
}

cudaError_t cudaStreamDestroy(void *queue)
{
    free(queue);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(void *queue)
{
    (void)queue;
    if (observer)
        observer->sync();
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    (void)flags;
    *ret = (cudaEvent_t)calloc(1, sizeof(struct timespec));
    return *ret ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(void *event)
{
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(void *event, void *queue)
{
    (void)queue;
    if (!event || clock_gettime(CLOCK_MONOTONIC, (struct timespec *)event) != 0)
        return cudaErrorInvalidValue;
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(void *queue, void *event, unsigned flags)
{
    (void)queue;
    return event && flags == 0 ? cudaSuccess : cudaErrorInvalidValue;
}

/* What is put into a queue is done at once: nothing can be noted for later. */
cudaError_t cudaStreamBeginCapture(void *queue, int mode)
{
    (void)queue;
    (void)mode;
    return cudaErrorNotSupported;
}

cudaError_t cudaStreamEndCapture(void *queue, cudaGraph_t *ret)
{
    (void)queue;
    *ret = NULL;
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long flags)
{
    (void)ret;
    (void)graph;
    (void)flags;
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    (void)graph;
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphLaunch(void *graph, void *queue)
{
    (void)graph;
    (void)queue;
    return cudaErrorNotSupported;
}

cudaError_t cudaGraphExecDestroy(void *graph)
{
    (void)graph;
    return cudaErrorNotSupported;
}

cudaError_t cudaEventSynchronize(void *event)
{
    return event ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaEventElapsedTime(float *ret_ms, void *from, void *to)
{
    const struct timespec *a = (const struct timespec *)from, *b = (const struct timespec *)to;
    *ret_ms = (float)(1e3 * (double)(b->tv_sec - a->tv_sec) + 1e-6 * (double)(b->tv_nsec - a->tv_nsec));
    return cudaSuccess;
}
}
