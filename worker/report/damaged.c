/* Damaged files beside windows that can be reported (damaged.h). */
#include "worker/report/damaged.h"

#include "base/config_table.h"
#include "base/strategy_traits.h"

#include <stdio.h>
#include <string.h>

static bool is_strategy_name(const char *word)
{
    const struct dpt_choice *choice = dpt_config_key("strategy.name")->choices;
    while (choice->name && strcmp(word, choice->name) != 0)
        choice++;
    return choice->name != NULL;
}

static bool is_of_other_strategy(const struct report_damaged *file,
                                 const struct report_wanted *wanted)
{
    if (dpt_strategy_divides_state(file->strategy))
        return !wanted->sharded;
    return is_strategy_name(file->strategy) && !wanted->replicated;
}

static bool is_in_group(const struct report_group *group, const char *path)
{
    for (size_t i = 0; i < group->n; i++)
        if (group->paths[i] == path)
            return true;
    return false;
}

/* Whether the newest window of its strategy has a later file of its rank. */
static bool is_of_older_window(const struct report_found *found, const struct report_damaged *file)
{
    const struct report_group *newest = NULL;
    for (size_t g = 0; g < found->n_groups; g++)
        if (found->groups[g].is_latest && strcmp(found->groups[g].strategy, file->strategy) == 0)
            newest = &found->groups[g];
    for (size_t i = 0; newest && file->rank != REPORT_UNKNOWN && i < found->n_files; i++) {
        const struct report_file *other = &found->files[i];
        if (other->rank == file->rank && other->time_ns > file->time_ns &&
            is_in_group(newest, other->path))
            return true;
    }
    return false;
}

enum dpt_status report_settle_damaged(const struct report_found *found,
                                      const struct report_wanted *wanted, struct dpt_err *err)
{
    for (size_t i = 0; i < found->n_damaged; i++) {
        const struct report_damaged *file = &found->damaged[i];
        if (is_of_other_strategy(file, wanted) ||
            (wanted->newest_only && is_of_older_window(found, file))) {
            (void)fprintf(stderr, "dpt-trace: warning: %s; it is of no window that is reported\n",
                          file->err.text);
            continue;
        }
        *err = file->err;
        return err->status;
    }
    return DPT_OK;
}
