/* kernels/cuda/fetch.cuh for a host's compiler: a thread's copies are made when it waits for them,
 * so that one that is not waited for shows. */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_FETCH_CUH_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_FETCH_CUH_H

#include <cuda_runtime.h>

#include <deque>
#include <vector>

struct emulated_fetch {
    void *to;
    const void *from;
};

/* Groups of a thread that it has not waited for; the last is not closed yet. */
static inline std::deque<std::vector<emulated_fetch>> &emulated_fetches(void)
{
    static thread_local std::deque<std::vector<emulated_fetch>> of[EMULATED_THREADS_MAX];
    std::deque<std::vector<emulated_fetch>> &mine = of[threadIdx.x];
    if (mine.empty())
        mine.emplace_back();
    return mine;
}

static inline void fetch_16_bytes(void *shared, const void *from)
{
    emulated_fetches().back().push_back({shared, from});
}

static inline void fetch_group(void)
{
    emulated_fetches().emplace_back();
}

template <int LATER> static inline void await_fetched(void)
{
    std::deque<std::vector<emulated_fetch>> &mine = emulated_fetches();
    while (mine.size() > LATER + 1) {
        for (const emulated_fetch &f : mine.front())
            memcpy(f.to, f.from, 16);
        mine.pop_front();
    }
}

#endif
