/* A tiny GPT-2 against what PyTorch recorded (reference.py): the first step's gradient of every
 * tensor, ten AdamW losses. */
#include "tests/worker/model/rig.h"

#include "base/cursor.h"
#include "base/fs.h"
#include "worker/optim/optim.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { FILE_BYTES_MAX = 1 << 20, STEPS_MAX = 100, SLOTS_MAX = 8 };

static const char *reference_path;
static struct dpt_err err;

/* The file's contents, laid out as the model's flat vectors. */
struct reference {
    struct rig rig;
    int slots;
    int64_t steps;
    int32_t *tokens; /* [slots][B][T+1] */
    float *grad;     /* [numel] */
    double loss[STEPS_MAX], norm[STEPS_MAX];
};

static double read_f64(struct dpt_reader *reader)
{
    const uint64_t bits = dpt_reader_u64(reader);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void read_sizes(struct dpt_reader *reader, struct reference *ref)
{
    uint32_t u[10];
    for (int i = 0; i < 10; i++)
        u[i] = dpt_reader_u32(reader);
    assert_false(reader->failed);
    assert_true(u[7] >= 1 && u[7] <= SLOTS_MAX && u[8] >= 1 && u[8] <= STEPS_MAX);
    ref->slots = (int)u[7];
    ref->steps = u[8];
    rig_open(&ref->rig, &(struct rig_size){.n_layer = (int)u[0],
                                           .n_head = (int)u[1],
                                           .n_embd = (int)u[2],
                                           .context = (int)u[3],
                                           .vocab = (int)u[4],
                                           .b = (int)u[5],
                                           .t = (int)u[6],
                                           .threads = 2});
    struct dpt_config *config = &ref->rig.config;
    config->train.steps = ref->steps;
    config->optimizer.warmup_steps = u[9];
    config->optimizer.schedule = DPT_SCHEDULE_COSINE;
    config->optimizer.lr = read_f64(reader);
    config->optimizer.min_lr = read_f64(reader);
    config->optimizer.beta1 = read_f64(reader);
    config->optimizer.beta2 = read_f64(reader);
    config->optimizer.eps = read_f64(reader);
    config->optimizer.weight_decay = read_f64(reader);
    config->train.grad_clip = read_f64(reader);
}

static void read_tensors(struct dpt_reader *reader, struct reference *ref)
{
    const struct dpt_model *model = ref->rig.model;
    assert_int_equal(dpt_reader_u32(reader), dpt_model_n_params(model));
    for (int i = 0; i < dpt_model_n_params(model); i++) {
        const struct dpt_param *p = dpt_model_param(model, i);
        char name[DPT_PARAM_NAME_BYTES];
        dpt_reader_text(reader, name, sizeof name);
        assert_string_equal(name, p->name);
        assert_int_equal(dpt_reader_u32(reader), p->numel);
        const size_t bytes = (size_t)p->numel * sizeof(float);
        dpt_reader_bytes(reader, ref->rig.flat + p->offset, bytes);
        dpt_reader_bytes(reader, ref->grad + p->offset, bytes);
    }
}

static void open_reference(struct reference *ref)
{
    memset(ref, 0, sizeof *ref);
    char *file, version[128];
    size_t bytes;
    assert_int_equal(dpt_fs_read_file(reference_path, FILE_BYTES_MAX, &file, &bytes, &err), DPT_OK);
    struct dpt_reader reader;
    dpt_reader_init(&reader, file, bytes);
    char magic[8];
    dpt_reader_bytes(&reader, magic, sizeof magic);
    assert_memory_equal(magic, "dptgpt2r", sizeof magic);
    assert_int_equal(dpt_reader_u32(&reader), 1);
    dpt_reader_text(&reader, version, sizeof version);
    print_message("recorded by %s\n", version);
    read_sizes(&reader, ref);
    const size_t n_tokens =
        (size_t)(ref->slots * ref->rig.slot.b * (ref->rig.slot.t + 1)) * sizeof(int32_t);
    ref->tokens = malloc(n_tokens);
    ref->grad = calloc((size_t)ref->rig.numel, sizeof(float));
    assert_true(ref->tokens != NULL && ref->grad != NULL);
    dpt_reader_bytes(&reader, ref->tokens, n_tokens);
    read_tensors(&reader, ref);
    for (int64_t i = 0; i < ref->steps; i++)
        ref->loss[i] = read_f64(&reader);
    for (int64_t i = 0; i < ref->steps; i++)
        ref->norm[i] = read_f64(&reader);
    assert_int_equal(dpt_reader_end(&reader, "reference", &err), DPT_OK);
    free(file);
}

static void close_reference(struct reference *ref)
{
    free(ref->tokens);
    free(ref->grad);
    rig_close(&ref->rig);
}

/* The gradient of one step's mean loss over all slots; returns that loss. */
static double run_slots(struct reference *ref, int64_t step)
{
    struct rig *rig = &ref->rig;
    double loss = 0.0;
    for (int s = 0; s < ref->slots; s++) {
        for (int64_t row = 0; row < rig->slot.b; row++) {
            const int32_t *from = ref->tokens + (s * rig->slot.b + row) * (rig->slot.t + 1);
            memcpy(rig->tokens + row * rig->slot.t, from, (size_t)rig->slot.t * sizeof *from);
            memcpy(rig->targets + row * rig->slot.t, from + 1, (size_t)rig->slot.t * sizeof *from);
        }
        rig->slot.step = step;
        rig->slot.slot = s;
        rig->slot.accumulate = s > 0;
        rig->slot.dloss = 1.0f / (float)(rig->n * ref->slots);
        loss += rig_run(rig) / ref->slots;
    }
    return loss;
}

static double length(const struct dpt_model *model, const float *grad)
{
    double squares = 0.0;
    for (int p = 0; p < dpt_model_n_params(model); p++) {
        const struct dpt_param *param = dpt_model_param(model, p);
        for (int64_t i = 0; i < param->numel; i++)
            squares += (double)grad[param->offset + i] * (double)grad[param->offset + i];
    }
    return sqrt(squares);
}

static void first_gradients(void **state)
{
    (void)state;
    static struct reference ref;
    open_reference(&ref);
    const double loss = run_slots(&ref, 0);
    assert_true(fabs(loss - ref.loss[0]) < 1e-5);
    double worst = 0.0;
    for (int p = 0; p < dpt_model_n_params(ref.rig.model); p++) {
        const struct dpt_param *param = dpt_model_param(ref.rig.model, p);
        double difference = 0.0, whole = 0.0;
        for (int64_t i = param->offset; i < param->offset + param->numel; i++) {
            const double expected = (double)ref.grad[i];
            difference += pow((double)ref.rig.grad[i] - expected, 2.0);
            whole += expected * expected;
        }
        const double relative = sqrt(difference / whole);
        worst = fmax(worst, relative);
        if (!(relative <= 1e-4))
            fail_msg("%s: relative L2 %g", param->name, relative);
    }
    print_message("worst relative L2 of a tensor: %.2g\n", worst);
    close_reference(&ref);
}

static void ten_losses(void **state)
{
    (void)state;
    static struct reference ref;
    open_reference(&ref);
    struct rig *rig = &ref.rig;
    float *m = calloc((size_t)rig->numel, sizeof *m);
    float *v = calloc((size_t)rig->numel, sizeof *v);
    assert_true(m != NULL && v != NULL);
    int clipped = 0;
    double worst = 0.0;
    for (int64_t step = 0; step < ref.steps; step++) {
        const double loss = run_slots(&ref, step);
        const double norm = length(rig->model, rig->grad);
        const float scale = dpt_clip_scale(norm, rig->config.train.grad_clip);
        clipped += scale < 1.0f;
        worst = fmax(worst, fabs(loss - ref.loss[step]));
        if (!(fabs(loss - ref.loss[step]) <= 1e-4))
            fail_msg("step %lld: loss %.7f, recorded %.7f", (long long)step, loss, ref.loss[step]);
        if (!(fabs(norm - ref.norm[step]) <= 1e-3 * ref.norm[step]))
            fail_msg("step %lld: norm %.7f, recorded %.7f", (long long)step, norm, ref.norm[step]);
        dpt_optim_adamw(&rig->config, rig->model, rig->ops, rig->stream, step, scale, 0, rig->numel,
                        rig->flat, rig->grad, m, v);
        assert_int_equal(dpt_stream_sync(rig->stream, &err), DPT_OK);
    }
    print_message("worst difference of a loss: %.2g; clipped %d of %lld steps\n", worst, clipped,
                  (long long)ref.steps);
    assert_true(clipped > 0 && clipped < ref.steps); /* both ways are exercised */
    free(m);
    free(v);
    close_reference(&ref);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        (void)fprintf(stderr, "usage: %s reference.bin\n", argv[0]);
        return 2;
    }
    reference_path = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_gradients),
        cmocka_unit_test(ten_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
