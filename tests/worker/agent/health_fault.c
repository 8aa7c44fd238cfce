/* A core that computes products wrongly, in a program that links this file and wraps
 * dpt_health_multiply. DPT_TEST_WRONG_PRODUCT=CORE asks for it: each product of the health check on
 * that core has one wrong bit. */
#include "worker/agent/health_product.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

void __real_dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                                const struct dpt_health_operands *operands, float *y);
void __wrap_dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                                const struct dpt_health_operands *operands, float *y);

void __wrap_dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                                const struct dpt_health_operands *operands, float *y)
{
    const char *core = getenv("DPT_TEST_WRONG_PRODUCT");
    __real_dpt_health_multiply(ops, stream, operands, y);
    if (core == NULL || strtol(core, NULL, 10) != sched_getcpu())
        return;
    uint32_t bits;
    memcpy(&bits, y, sizeof bits);
    bits ^= 1;
    memcpy(y, &bits, sizeof bits);
}
