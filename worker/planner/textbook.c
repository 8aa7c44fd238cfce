/* The textbook's accounting: see textbook.h. */
#include "worker/planner/textbook.h"

enum { F32 = 4, F16 = 2 };

struct dpt_textbook_widths dpt_textbook_plain(double width, int moments)
{
    return (struct dpt_textbook_widths){width, width, width * moments};
}

struct dpt_textbook_widths dpt_textbook_mixed(int moments)
{
    return (struct dpt_textbook_widths){F16, F16, F32 * (1.0 + moments)};
}

double dpt_textbook_copy(double parameters, struct dpt_textbook_widths widths)
{
    return parameters * (widths.weight + widths.gradient + widths.optimizer);
}

double dpt_textbook_rank(double parameters, struct dpt_textbook_widths widths,
                         enum dpt_textbook_stage stage, int ranks)
{
    widths.optimizer /= stage >= DPT_TEXTBOOK_ZERO1 ? ranks : 1;
    widths.gradient /= stage >= DPT_TEXTBOOK_ZERO2 ? ranks : 1;
    widths.weight /= stage >= DPT_TEXTBOOK_ZERO3 ? ranks : 1;
    return dpt_textbook_copy(parameters, widths);
}
