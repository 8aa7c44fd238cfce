/* kernels/cuda/fetch.cuh for the host's compiler. A thread's copies are made when the thread waits
 * for them, so that a missing wait gives a wrong result. */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_FETCH_CUH_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_KERNELS_CUDA_FETCH_CUH_H

#include <cuda_runtime.h>

#include <deque>
#include <vector>

struct emulated_fetch {
    void *to;
    const void *from;
};

/* The groups for which this thread has not waited; the last one is still open. */
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
