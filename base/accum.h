/* Exact sum of floats and doubles: a fixed-point integer wide enough for every finite double. The
 * sum does not depend on the order of the additions nor on their division among threads and ranks
 * (a "long accumulator": Kulisch, "Computer Arithmetic and Validity", ch. 8; the form with limbs
 * and delayed carries: Neal, arXiv:1505.05571).
 *
 * Limb i has the weight 2^(32 i - 1074). A limb is a signed 64-bit integer. It sums 32 bits of many
 * terms before its carry must move to the next limb; `pending` counts the terms since the last
 * carry. The struct is plain data that ranks may send as bytes between machines of one byte order.
 * After dpt_accum_normalise equal values have equal bytes. */
#ifndef DPT_BASE_ACCUM_H
#define DPT_BASE_ACCUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    /* Room for 2098 bits of the double range and 31 bits of carries. The last limb keeps its carry
       and the sign. */
    DPT_ACCUM_LIMBS = 67,
    DPT_ACCUM_NAN = 1,
    DPT_ACCUM_PLUS_INF = 2,
    DPT_ACCUM_MINUS_INF = 4
};

struct dpt_accum {
    int64_t limb[DPT_ACCUM_LIMBS];
    uint32_t pending; /* the absolute value of every limb is below (pending + 1) 2^32 */
    uint32_t flags;   /* sticky DPT_ACCUM_NAN, …: which special values were added */
};
_Static_assert(sizeof(struct dpt_accum) == DPT_ACCUM_LIMBS * 8 + 8, "sent as bytes: no padding");

void dpt_accum_init(struct dpt_accum *accum);

/* Whether a sequence of additions can have produced these numbers. To be called before any other
 * use of an accumulator that another process has sent. */
bool dpt_accum_is_sound(const struct dpt_accum *accum);

/* Adds a value exactly. NaN and infinities set a flag instead. At most 2^31 additions in all,
 * including those of merged accumulators. */
void dpt_accum_add(struct dpt_accum *accum, double value);

/* accum += other, exactly: associative and commutative. `other` may be the same object. */
void dpt_accum_merge(struct dpt_accum *accum, const struct dpt_accum *other);

/* Moves all carries, so that equal sums with equal flags have equal bytes. The value does not
 * change. */
void dpt_accum_normalise(struct dpt_accum *accum);

/* The sum, rounded once, to nearest, ties to even; ±infinity if the sum is beyond the range. NaN if
 * a NaN or infinities of both signs were added; the infinity if infinities of one sign were added.
 * An exact zero is +0. */
double dpt_accum_value(const struct dpt_accum *accum);

#endif
