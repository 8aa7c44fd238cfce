/* The time and the price of a run: see duration.h. */
#include "worker/planner/duration.h"

enum { DAY_S = 86400, DAY_H = 24 };

double dpt_duration_flops(const struct dpt_duration_model *model)
{
    return 6 * model->trained + 4 * model->frozen +
           6.0 * model->layers * model->channels * model->seq_len;
}

double dpt_duration_rate(double peak, double mfu, double ranks, double flops_per_token)
{
    return peak * mfu * ranks / flops_per_token;
}

double dpt_duration_days(double tokens, double tokens_per_s)
{
    return tokens / tokens_per_s / DAY_S;
}

double dpt_duration_price(double days, int machines, double price)
{
    return days * DAY_H * machines * price;
}
