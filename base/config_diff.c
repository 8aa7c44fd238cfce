/* The keys in which two configs differ. */
#include "base/config_table.h"

#include "base/strategy_traits.h"

#include <stdio.h>
#include <string.h>

static bool rate_depends_on_steps(const struct dpt_config *config)
{
    return config->optimizer.schedule != DPT_SCHEDULE_CONSTANT &&
           config->optimizer.schedule_steps == DPT_AUTO;
}

static bool both_have_epochs(const struct dpt_config *a, const struct dpt_config *b)
{
    return a->train.epochs > 0 && b->train.epochs > 0;
}

/* The scope of a key in this comparison. train.steps changes no weight before the last step, unless
 * the learning rate depends on it. If `a` has train.on_divergence: stop, the run has not diverged
 * yet, so its bits are the same under every value of that key. */
static enum dpt_config_scope scope_of(const struct dpt_key *key, const struct dpt_config *a,
                                      const struct dpt_config *b)
{
    const bool is_length = strcmp(key->path, "train.steps") == 0 ||
                           (both_have_epochs(a, b) && strcmp(key->path, "train.epochs") == 0);
    if (is_length && !rate_depends_on_steps(a) && !rate_depends_on_steps(b))
        return DPT_CONFIG_RUN;
    if (a->train.on_divergence == DPT_DIVERGENCE_STOP &&
        strcmp(key->path, "train.on_divergence") == 0)
        return DPT_CONFIG_RUN;
    return key->scope;
}

/* Replaces auto by its value, so that auto and an equal value do not differ. */
static void replace_auto(struct dpt_config *config)
{
    config->train.lanes = dpt_config_lanes(config);
    config->train.accumulate = dpt_strategy_traits(config).order;
}

static bool is_compared(const struct dpt_key *key, const struct dpt_config *a,
                        const struct dpt_config *b, enum dpt_config_scope scope,
                        const char *const *allowed)
{
    if ((key->flags & DPT_KEY_ALIAS) || scope_of(key, a, b) > scope)
        return false;
    /* With epochs train.steps is derived. Then the key that changed is compared instead. */
    if (both_have_epochs(a, b) && strcmp(key->path, "train.steps") == 0)
        return false;
    for (; allowed && *allowed; allowed++)
        if (strcmp(*allowed, key->path) == 0)
            return false;
    return true;
}

int dpt_config_diff(const struct dpt_config *a, const struct dpt_config *b,
                    enum dpt_config_scope scope, const char *const *allowed, char *ret_keys,
                    size_t keys_bytes)
{
    struct dpt_config left = *a, right = *b;
    char left_text[DPT_CONFIG_VALUE_BYTES], right_text[DPT_CONFIG_VALUE_BYTES];
    size_t used = 0;
    int n = 0;
    replace_auto(&left);
    replace_auto(&right);
    DPT_ASSERT(keys_bytes > 0);
    ret_keys[0] = '\0';
    for (size_t i = 0; i < dpt_config_n_keys; i++) {
        const struct dpt_key *key = &dpt_config_keys[i];
        if (!is_compared(key, a, b, scope, allowed))
            continue;
        dpt_config_key_format(key, &left, left_text);
        dpt_config_key_format(key, &right, right_text);
        if (strcmp(left_text, right_text) == 0)
            continue;
        int written = snprintf(ret_keys + used, keys_bytes - used, "%s%s (%.*s, here %.*s)",
                               n ? ", " : "", key->path, DPT_CONFIG_SHOWN_BYTES, left_text,
                               DPT_CONFIG_SHOWN_BYTES, right_text);
        if (written > 0) /* a text that is too long is cut */
            used += (size_t)written < keys_bytes - used ? (size_t)written : keys_bytes - used - 1;
        n++;
    }
    return n;
}
