/* The product of the health check: y = x w, with x (ROWS, DEPTH) and w (DEPTH, COLUMNS) in f32.
 *
 * The first half of the rows of x and of the columns of w are integers of at most 2^8. So their
 * products and all partial sums are integers of at most 2^24, which f32 has exactly: in that corner
 * of y every order of additions and every instruction set must give the values that integer
 * arithmetic gives. The other elements use all bits of an f32. Their values depend on the order of
 * additions, so only products of one process are compared. */
#ifndef DPT_WORKER_AGENT_HEALTH_PRODUCT_H
#define DPT_WORKER_AGENT_HEALTH_PRODUCT_H

#include "kernels/device.h"

#include <stdint.h>

enum {
    DPT_HEALTH_ROWS = 64,
    DPT_HEALTH_DEPTH = 256,
    DPT_HEALTH_COLUMNS = 192,
    DPT_HEALTH_Y_FLOATS = DPT_HEALTH_ROWS * DPT_HEALTH_COLUMNS
};

struct dpt_health_operands {
    float x[DPT_HEALTH_ROWS * DPT_HEALTH_DEPTH];
    float w[DPT_HEALTH_DEPTH * DPT_HEALTH_COLUMNS];
    /* The corner (ROWS / 2, COLUMNS / 2) of y, by integer arithmetic. */
    int32_t corner[DPT_HEALTH_ROWS / 2 * DPT_HEALTH_COLUMNS / 2];
};

void dpt_health_draw_operands(struct dpt_health_operands *ret);

/* y = x w, by the ops of the stream's device. An error sticks to the stream. */
void dpt_health_multiply(const struct dpt_ops *ops, struct dpt_stream *stream,
                         const struct dpt_health_operands *operands, float *y);

/* Whether the corner of y is right. */
bool dpt_health_corner_is_right(const struct dpt_health_operands *operands, const float *y);

#endif
