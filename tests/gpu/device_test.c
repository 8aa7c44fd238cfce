/* The CUDA device and its streams: fingerprint, memory, errors that stick, priorities, the
 * preparing mode, packed forms. */
#include "tests/gpu/gpu.h"

#include "kernels/cuda/cudnn_ops.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.h"
#ifdef DPT_TEST_EMULATED
#include "tests/gpu/emulated/control.h"
#endif

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void check_fingerprint(struct test_stream *t)
{
    struct test_stream other = gpu_open();
    const char *text = dpt_device_fingerprint(t->device);
    CHECK(strcmp(text, dpt_device_fingerprint(other.device)) == 0);
    CHECK(strncmp(text, "cuda sm", 7) == 0);
    CHECK(strstr(text, "driver-") && strstr(text, "rt-") && strstr(text, " lt-") &&
          strstr(text, " dnn-"));
    CHECK(strlen(text) + 14 < DPT_FINGERPRINT_BYTES); /* not cut, and the host's goes beside it */
    int count = 0;
    char looked[DPT_FINGERPRINT_BYTES];
    struct dpt_err err;
    char bus[DPT_DEVICE_BUS_BYTES];
    CHECK(dpt_device_cuda_look(&count, looked, &err) == DPT_OK && count >= 1);
    CHECK(dpt_device_cuda_bus(0, bus, &err) == DPT_OK && strlen(bus) == strlen("0000:00:00.0"));
    bool peer = true;
    CHECK(dpt_device_cuda_peer(0, 0, &peer, &err) == DPT_OK && !peer);
    CHECK(dpt_device_cuda_peer(0, 1000, &peer, &err) == DPT_ENOENT);
    CHECK(strcmp(looked, text) == 0);
    test_stream_close(&other);
}

static void check_memory(struct test_stream *t)
{
    static const size_t sizes[] = {0, 1, 100, 5 << 20};
    const size_t before = dpt_device_bytes(t->device);
    struct dpt_err err;
    for (int i = 0; i < 4; i++) {
        void *p = NULL;
        char *host = malloc(sizes[3]);
        memset(host, 1, sizes[3]);
        CHECK(dpt_device_alloc(t->device, sizes[i], &p, &err) == DPT_OK);
        CHECK((uintptr_t)p % 64 == 0);
        CHECK(dpt_device_bytes(t->device) == before + sizes[i]);
        test_download(t, p, sizes[i], host);
        size_t zeros = 0;
        while (zeros < sizes[i] && host[zeros] == 0)
            zeros++;
        CHECK(zeros == sizes[i]);
        dpt_device_free(t->device, p, sizes[i]);
        free(host);
    }
    CHECK(dpt_device_bytes(t->device) == before);
    /* Page-locked memory: through the device and back. */
    void *locked = NULL, *p = NULL;
    CHECK(dpt_device_alloc_host(t->device, sizes[3], &locked, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, sizes[3], &p, &err) == DPT_OK);
    memset(locked, 7, sizes[3]);
    t->ops->copy(t->stream, sizes[3], locked, p);
    t->ops->copy(t->stream, sizes[3] / 2, p, (char *)locked + sizes[3] / 2);
    CHECK(dpt_stream_sync(t->stream, &err) == DPT_OK);
    CHECK(((char *)locked)[sizes[3] - 1] == 7);
    dpt_device_free(t->device, p, sizes[3]);
    dpt_device_free_host(t->device, locked, sizes[3]);
    void *none = NULL;
    CHECK(dpt_device_alloc(t->device, (size_t)1 << 50, &none, &err) == DPT_ENOMEM);
    CHECK(none == NULL && strstr(err.text, "CUDA device 0"));
}

static void check_errors(struct test_stream *t)
{
    struct dpt_err err;
    struct dpt_stream *s = NULL;
    struct dpt_device *dev = NULL;
    float x[4] = {1, 2, 3, 4}, y[4] = {5, 6, 7, 8};
    float *dx = test_upload(t, x, sizeof x), *dy = test_upload(t, y, sizeof y);
    CHECK(dpt_stream_create(t->device, 0, &s, &err) == DPT_EINVAL);
    CHECK(dpt_device_cuda_create(1000, &dev, &err) == DPT_ENOENT && dev == NULL);
    CHECK(strstr(err.text, "cluster.gpus_per_node") != NULL);
#ifdef DPT_TEST_EMULATED
    emulated_refuse_loading(1);
    CHECK(dpt_device_cuda_create(0, &dev, &err) == DPT_ENOMEM && dev == NULL);
    CHECK(strstr(err.text, "loading kernel a_kernel on CUDA device 0") != NULL);
    emulated_refuse_loading(0);
#endif
    t->ops->gelu_forward(t->stream,
                         &(struct dpt_gelu){.n = 4, .dtype = DPT_DTYPE_COUNT, .x = dx, .out = dy});
    t->ops->fill(t->stream, 4, 9.0f, dy); /* the error sticks: nothing runs after it */
    CHECK(dpt_stream_sync(t->stream, &err) == DPT_EUNSUPPORTED && strstr(err.text, "gelu"));
    CHECK(dpt_stream_sync(t->stream, &err) == DPT_OK);
    test_download(t, dy, sizeof y, x);
    CHECK(memcmp(x, y, sizeof y) == 0);
    t->ops->attention_forward(
        t->stream,
        &(struct dpt_attention){.b = 1, .t = 1, .heads = 1, .kv_heads = 1, .head_size = 257});
    CHECK(dpt_stream_sync(t->stream, &err) == DPT_EUNSUPPORTED && strstr(err.text, "257"));
    t->ops->linear_forward(
        t->stream, /* not where whole vectors are read from */
        &(struct dpt_linear_forward){.n = 4, .in = 4, .out = 4, .x = dx + 1, .w = dx, .y = dy});
    CHECK(dpt_stream_sync(t->stream, &err) == DPT_EINVAL && strstr(err.text, "aligned"));
    dpt_device_free(t->device, dx, sizeof x);
    dpt_device_free(t->device, dy, sizeof y);
}

/* What a block may have of shared memory: more rows than it holds the scores of are refused while
 * the stream prepares, and a device on which kernels would not run is not opened. */
static void check_shared_memory(struct test_stream *t)
{
    enum { CHANNELS = 4 };
    const struct dpt_cuda_stream *s = dpt_cuda_stream(t->stream);
    const int bytes = dpt_cuda_device_of(s)->shared_bytes;
    const int64_t most = dpt_launch_attention_rows_max(bytes);
    const size_t qkv_bytes = (size_t)most * 3 * CHANNELS * sizeof(float);
    struct dpt_attention_rows rows = {
        .first = most - 1, .end = most, .heads = 1, .kv_heads = 1, .head_size = CHANNELS};
    struct dpt_err err;
    void *qkv = NULL, *y = NULL;
    CHECK(bytes >= DPT_CUDA_SHARED_BYTES_MIN && most > 0);
    for (int over = 0; over < 2; over++, rows.end++) {
        dpt_stream_prepare_begin(t->stream);
        t->ops->attention_rows(t->stream, &rows);
        const enum dpt_status status = dpt_stream_prepare_end(t->stream, &err);
        CHECK(status == (over ? DPT_EUNSUPPORTED : DPT_OK));
    }
    CHECK(strstr(err.text, "attention rows") && strstr(err.text, "shared memory"));
    CHECK(dpt_device_alloc(t->device, qkv_bytes, &qkv, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, CHANNELS * sizeof(float), &y, &err) == DPT_OK);
    rows.end = most;
    rows.qkv = qkv;
    rows.y = y;
    t->ops->attention_rows(t->stream, &rows); /* all that a block may have */
    test_stream_check(t);
    dpt_device_free(t->device, qkv, qkv_bytes);
    dpt_device_free(t->device, y, CHANNELS * sizeof(float));
#ifdef DPT_TEST_EMULATED
    struct dpt_device *dev = NULL;
    CHECK(setenv("DPT_EMULATED_SHARED_BYTES", "65536", 1) == 0);
    CHECK(dpt_device_cuda_create(0, &dev, &err) == DPT_EUNSUPPORTED && !dev);
    CHECK(strstr(err.text, "65536") && strstr(err.text, "cluster.device"));
    CHECK(unsetenv("DPT_EMULATED_SHARED_BYTES") == 0);
#endif
}

/* Ops that are captured as a graph and launched; the emulated device refuses and goes on. */
static void check_graphs(struct test_stream *t)
{
    enum { VALUES = 4, LAUNCHES = 3 };
    struct dpt_err err;
    struct dpt_graph *graph = NULL;
    float x[VALUES] = {1, 2, 3, 4}, y[VALUES] = {10, 20, 30, 40};
    float *dx = test_upload(t, x, sizeof x), *dy = test_upload(t, y, sizeof y);
    CHECK(dpt_device_has_graphs(t->device) && dpt_stream_capture_begin(t->stream));
    t->ops->add(t->stream, VALUES, dx, dy, dx);
    const enum dpt_status status = dpt_stream_capture_end(t->stream, &graph, &err);
#ifdef DPT_TEST_EMULATED
    CHECK(status == DPT_EDEVICE && strstr(err.text, "graph") && !graph);
    for (int i = 0; i < LAUNCHES; i++)
        t->ops->add(t->stream, VALUES, dx, dy, dx);
#else
    CHECK(status == DPT_OK && graph && dpt_graph_is_current(graph, t->stream));
    for (int i = 0; i < LAUNCHES && graph; i++)
        dpt_graph_launch(graph, t->stream);
#endif
    test_download(t, dx, sizeof x, x);
    for (int i = 0; i < VALUES; i++)
        CHECK(x[i] == (float)(1 + i) + (float)LAUNCHES * y[i]);
    dpt_graph_destroy(&graph);
    dpt_device_free(t->device, dx, sizeof x);
    dpt_device_free(t->device, dy, sizeof y);
}

/* One stream waits for another stream's ops up to an event. */
static void check_events(struct test_stream *t)
{
    enum { VALUES = 1 << 22, ADDED = 50 };
    struct dpt_err err;
    struct dpt_stream *other = NULL;
    struct dpt_event *event = NULL;
    void *memory = NULL;
    float last = 0;
    CHECK(dpt_stream_create(t->device, 1, &other, &err) == DPT_OK);
    CHECK(dpt_event_create(t->device, &event, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, VALUES * sizeof(float), &memory, &err) == DPT_OK);
    float *x = memory;
    t->ops->fill(t->stream, VALUES, 1, x);
    for (int i = 0; i < ADDED; i++) /* x doubles: long enough to be overtaken */
        t->ops->add(t->stream, VALUES, x, x, x);
    dpt_event_record(event, t->stream);
    dpt_event_await(event, other);
    dpt_event_wait(event, t->stream);
    t->ops->copy(other, sizeof last, x + VALUES - 1, &last);
    CHECK(dpt_stream_sync(other, &err) == DPT_OK);
    CHECK(last == 1125899906842624.0f); /* 2^50 */
    test_stream_check(t);
    dpt_event_destroy(&event);
    dpt_device_free(t->device, memory, VALUES * sizeof(float));
    dpt_stream_destroy(&other);
}

/* An urgent stream goes before others. */
static void check_priority(struct test_stream *t)
{
    struct dpt_err err;
    struct dpt_stream *urgent = NULL;
    CHECK(dpt_stream_create_urgent(t->device, 1, &urgent, &err) == DPT_OK);
#ifdef DPT_TEST_EMULATED
    CHECK(emulated_priority(dpt_cuda_stream(urgent)->queue) <
          emulated_priority(dpt_cuda_stream(t->stream)->queue));
#endif
    dpt_stream_destroy(&urgent);
}

/* After preparing with no tensors, the same ops take no more memory from the device. */
static void check_preparing(struct test_stream *t)
{
    enum { ROWS = 128, C = 64, V = 1000 };
    struct dpt_err err;
    struct dpt_head_loss head = {.n = ROWS, .c = C, .v = V, .dtype = DPT_BF16, .dloss = 1.0f};
    dpt_stream_prepare_begin(t->stream);
    t->ops->head_loss(t->stream, &head);
    CHECK(dpt_stream_prepare_end(t->stream, &err) == DPT_OK);
    void *x = NULL, *w = NULL, *targets = NULL, *loss = NULL, *dx = NULL, *dw = NULL;
    CHECK(dpt_device_alloc(t->device, ROWS * C * 2, &x, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, V * C * 2, &w, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, ROWS * 4, &targets, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, ROWS * 4, &loss, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, ROWS * C * 2, &dx, &err) == DPT_OK);
    CHECK(dpt_device_alloc(t->device, V * C * 4, &dw, &err) == DPT_OK);
    const size_t before = dpt_device_bytes(t->device);
    head.x = x;
    head.w = w;
    head.targets = targets;
    head.loss = loss;
    head.dx = dx;
    head.dw = dw;
    t->ops->head_loss(t->stream, &head);
    test_stream_check(t);
    CHECK(dpt_device_bytes(t->device) == before);
    dpt_device_free(t->device, x, ROWS * C * 2);
    dpt_device_free(t->device, w, V * C * 2);
    dpt_device_free(t->device, targets, ROWS * 4);
    dpt_device_free(t->device, loss, ROWS * 4);
    dpt_device_free(t->device, dx, ROWS * C * 2);
    dpt_device_free(t->device, dw, V * C * 4);
}

static void check_no_packed_form(struct test_stream *t)
{
    CHECK(!t->ops->packed_bytes && !t->ops->pack);
}

/* A device that is told to use TF32 rounds the operands of f32 products, and nothing else. */
static void check_tf32(void)
{
    enum { ROWS = 64, IN = 512, OUT = 96 };
    static float x[ROWS * IN], w[IN * OUT], y[2][ROWS * OUT];
    fill_random(x, ROWS * IN, 3);
    fill_random(w, IN * OUT, 4);
    for (int tf32 = 0; tf32 < 2; tf32++) {
        struct test_stream t = {.stream = NULL};
        struct dpt_err err;
        CHECK(dpt_device_cuda_create(0, &t.device, &err) == DPT_OK);
        if (tf32)
            dpt_device_use_tf32(t.device);
        t.ops = dpt_device_ops(t.device);
        CHECK(dpt_stream_create(t.device, 1, &t.stream, &err) == DPT_OK);
        float *dx = test_upload(&t, x, sizeof x), *dw = test_upload(&t, w, sizeof w);
        float *dy = test_upload(&t, y[tf32], sizeof y[tf32]);
        const struct dpt_linear_forward f = {
            .n = ROWS, .in = IN, .out = OUT, .x = dx, .w = dw, .y = dy};
        t.ops->linear_forward(t.stream, &f);
        test_download(&t, dy, sizeof y[tf32], y[tf32]);
        dpt_device_free(t.device, dx, sizeof x);
        dpt_device_free(t.device, dw, sizeof w);
        dpt_device_free(t.device, dy, sizeof y[tf32]);
        test_stream_close(&t);
    }
    double off[2] = {0}, norm = 0; /* of f32 and of TF32 */
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < OUT; j++) {
            double sum = 0;
            for (int k = 0; k < IN; k++)
                sum += (double)x[i * IN + k] * (double)w[k * OUT + j];
            norm += sum * sum;
            for (int tf32 = 0; tf32 < 2; tf32++)
                off[tf32] += pow((double)y[tf32][i * OUT + j] - sum, 2);
        }
    CHECK(sqrt(off[0] / norm) < 1e-6);
    CHECK(sqrt(off[1] / norm) > 3e-5 && sqrt(off[1] / norm) < 2e-3);
}

/* Prepared products and plans of the libraries have run once when preparing ends. */
static void check_warm(struct test_stream *t)
{
    const struct dpt_attention forward = {
        .b = 2, .t = 64, .heads = 2, .kv_heads = 2, .head_size = 64, .dtype = DPT_BF16};
    const struct dpt_attention backward = {
        .b = 2, .t = 64, .heads = 2, .kv_heads = 2, .head_size = 64, .dtype = DPT_BF16};
    const struct dpt_linear_forward linear = {.n = 64, .in = 48, .out = 80, .dtype = DPT_BF16};
    struct dpt_cuda_stream *s = dpt_cuda_stream(t->stream);
    struct dpt_err err;
#ifdef DPT_TEST_EMULATED
    CHECK(setenv("DPT_CUDNN", "double", 1) == 0); /* to the end: the stream has its handle */
#endif
    dpt_stream_prepare_begin(t->stream);
    t->ops->attention_forward(t->stream, &forward);
    t->ops->attention_backward(t->stream, &backward);
    t->ops->linear_forward(t->stream, &linear);
#ifndef DPT_TEST_EMULATED
    CHECK(dpt_cuda_gemm_cold_bytes(s) >= 64 * 80 * 2);
#endif
    CHECK(dpt_cudnn_version() == 0 || dpt_cudnn_cold_bytes(s) >= 2 * 64 * 3 * 128 * 2);
    CHECK(dpt_stream_prepare_end(t->stream, &err) == DPT_OK);
    CHECK(dpt_cuda_gemm_cold_bytes(s) == 0 && dpt_cudnn_cold_bytes(s) == 0);
}

int main(void)
{
    struct test_stream t = gpu_open();
    check_fingerprint(&t);
    check_memory(&t);
    check_errors(&t);
    check_shared_memory(&t);
    check_graphs(&t);
    check_events(&t);
    check_priority(&t);
    check_preparing(&t);
    check_no_packed_form(&t);
    check_warm(&t);
    check_tf32();
    test_stream_close(&t);
    return gpu_verdict("device");
}
