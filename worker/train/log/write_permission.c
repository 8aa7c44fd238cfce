/* The right to write what this rank keeps of itself in log.dir. */
#include "base/clock.h"
#include "base/log.h"
#include "worker/train/rank_internal.h"

struct patience {
    const struct dpt_rank *r;
    int64_t until_ms;
};

static bool is_over(void *ctx)
{
    const struct patience *patience = ctx;
    return dpt_link_interrupted(patience->r->link, patience->r->gen.number) ||
           dpt_now_ms() >= patience->until_ms;
}

bool rank_may_record(const struct dpt_rank *r, const char *what)
{
    const int64_t limit_ms = (int64_t)(r->config->log.wait_s * 1000.0);
    struct patience patience = {r, dpt_now_ms() + limit_ms};
    if (dpt_link_await_write(r->link, is_over, &patience))
        return true;
    if (!dpt_link_interrupted(r->link, r->gen.number))
        dpt_log(DPT_LOG_WARN,
                "%s not written: this node stood still and has not heard for %g s (log.wait_s) "
                "whether it was replaced meanwhile",
                what, r->config->log.wait_s);
    return false;
}
