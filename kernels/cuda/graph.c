/* The ops of a stream as a CUDA graph (device.h): captured from the queue, instantiated once,
 * launched many times. */
#include "kernels/cuda/stream.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

struct graph {
    cudaGraphExec_t exec;
    const void *workspace; /* the stream's workspace, which its ops use */
};

bool dpt_cuda_capture_begin(struct dpt_stream *stream)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (!dpt_cuda_begin(s, DPT_F32, "a graph"))
        return false;
    /* The capture restricts only this thread's calls, because other threads allocate meanwhile, and
     * so do the threads of NCCL. dpt_cuda_capture_end returns an error of this call. */
    (void)dpt_cuda_posted(s, cudaStreamBeginCapture(s->queue, cudaStreamCaptureModeThreadLocal),
                          "a graph");
    return true;
}

/* Instantiates the captured ops. An error of an op or of the instantiation becomes the stream's. */
static void instantiate_captured(struct dpt_cuda_stream *s, struct graph *ret)
{
    cudaGraph_t captured = NULL;
    const cudaError_t code = cudaStreamEndCapture(s->queue, &captured);
    if (dpt_cuda_posted(s, code, "a graph") && s->base.error.status == DPT_OK)
        (void)dpt_cuda_posted(s, cudaGraphInstantiate(&ret->exec, captured, 0), "a graph");
    if (captured)
        (void)cudaGraphDestroy(captured);
}

enum dpt_status dpt_cuda_capture_end(struct dpt_stream *stream, void **ret, struct dpt_err *err)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    struct graph made = {.workspace = s->workspace};
    instantiate_captured(s, &made);
    struct graph *graph = s->base.error.status == DPT_OK ? malloc(sizeof *graph) : NULL;
    if (graph) {
        *graph = made;
        *ret = graph;
        return DPT_OK;
    }
    (void)cudaGetLastError(); /* cleared, so that the next launch does not report it */
    if (made.exec)
        (void)cudaGraphExecDestroy(made.exec);
    if (s->base.error.status == DPT_OK)
        return dpt_fail_nomem(err, "a graph");
    return dpt_stream_take_error(stream, err);
}

bool dpt_cuda_graph_is_current(const void *native, const struct dpt_stream *stream)
{
    return ((const struct graph *)native)->workspace ==
           ((const struct dpt_cuda_stream *)stream)->workspace;
}

void dpt_cuda_graph_launch(void *native, struct dpt_stream *stream)
{
    struct dpt_cuda_stream *s = dpt_cuda_stream(stream);
    if (dpt_cuda_begin(s, DPT_F32, "a graph"))
        (void)dpt_cuda_posted(s, cudaGraphLaunch(((struct graph *)native)->exec, s->queue),
                              "a graph");
}

void dpt_cuda_graph_destroy(struct dpt_device *dev, void *native)
{
    struct graph *graph = native;
    if (cudaSetDevice(((struct dpt_cuda_device *)dev)->index) == cudaSuccess)
        (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
}
