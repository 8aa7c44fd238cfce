/* Optimizer and scaler: combinations that cannot be, and the nearest that can. */
#include "base/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

static void test_optimizer_combinations(void **state)
{
    (void)state;
    static const struct {
        const char *set, *error; /* NULL: it can be */
    } cases[] = {
        {"optimizer={name: sgd, nesterov: true, momentum: 0}",
         "optimizer.nesterov needs momentum, and optimizer.momentum is 0; set it to "
         "e.g. 0.9, or nesterov to false"},
        {"optimizer={name: sgd, nesterov: true}", NULL},
        {"optimizer={lr_scaling: linear}",
         "optimizer.lr_scaling: linear needs optimizer.base_batch; name the global batch that "
         "optimizer.lr was chosen for"},
        {"optimizer={lr_scaling: linear, base_batch: 256}", NULL},
        {"optimizer={schedule: constant, schedule_steps: 20}",
         "optimizer.schedule_steps is 20, and optimizer.schedule constant decays over no steps; "
         "write cosine or linear there, or auto here"},
        {"optimizer={schedule: cosine, schedule_steps: 20}", NULL},
        {"optimizer={schedule: linear, schedule_steps: 1000}", NULL}, /* more than train.steps */
        {"optimizer.schedule_steps=0",
         "optimizer.schedule_steps: expected an integer from 1 to 1000000000000, got '0'"},
        {"optimizer.name=adam", NULL},
        {"optimizer.name=Adam",
         "optimizer.name: unknown value 'Adam'; supported: adamw, adam, sgd"},
        {"train.loss_scale=3",
         "train.loss_scale: 3 is no power of two, so gradients cannot be scaled back "
         "exactly; nearest: 2 or 4"},
        {"train={precision: fp16, loss_scale_backoff: 0.3}",
         "train.loss_scale_backoff: 0.3 is no power of two, so gradients cannot be scaled "
         "back exactly; nearest: 0.25 or 0.5"},
        {"train={on_divergence: skip, divergence_limit: 3}", NULL},
        {"train.on_divergence=ignore",
         "train.on_divergence: unknown value 'ignore'; supported: stop, skip, continue"},
        {"train={precision: fp16, loss_scale: 1, loss_scale_growth: 1, loss_scale_backoff: 0.125}",
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct dpt_config c;
        struct dpt_err err;
        char line[DPT_ERR_TEXT_BYTES];
        const enum dpt_status status =
            dpt_config_load_text("", "c.yaml", &cases[i].set, 1, &c, &err);
        (void)snprintf(line, sizeof line, "--set %s: %s", cases[i].set, cases[i].error);
        assert_int_equal(status, cases[i].error ? DPT_ECONFIG : DPT_OK);
        if (cases[i].error)
            assert_string_equal(err.text, line);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_optimizer_combinations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
