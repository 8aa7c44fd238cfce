/* See device_rig.h. */
#include "tests/worker/train/device_rig.h"

#include "base/account.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>
#include <stdio.h>

static _Atomic(struct dpt_device *) devices[DIRECTOR_RANKS_MAX]; /* the newest of each handle */

enum dpt_status device_rig_open(const struct dpt_rank_start *start, struct dpt_device **ret,
                                struct dpt_err *err)
{
    DPT_TRY(dpt_device_discrete_create(DEVICE_RIG_ROOM, ret, err));
    atomic_store(&devices[start->local_rank], *ret);
    return DPT_OK;
}

size_t device_rig_in_use(int handle)
{
    return dpt_device_discrete_bytes(atomic_load(&devices[handle]));
}

int device_rig_setup(void **state)
{
    (void)state;
    director_open_device_with(device_rig_open);
    nccl_ranks_begin((struct fabric_devices){dpt_device_discrete_copy, dpt_device_discrete_await});
    return 0;
}

int device_rig_teardown(void **state)
{
    (void)state;
    director_open_device_with(NULL);
    nccl_ranks_end();
    return 0;
}

void offload(struct dpt_config *config)
{
    config->cluster.device = DPT_DEVICE_CUDA;
    config->strategy.offload = DPT_OFFLOAD_OPTIMIZER;
}

void keep_state_on_device(struct dpt_config *config)
{
    config->cluster.device = DPT_DEVICE_CUDA;
    config->strategy.offload = DPT_OFFLOAD_NONE;
    config->cluster.backend = DPT_BACKEND_NCCL;
}

struct dpt_config device_rig_config(enum dpt_accumulate accumulate, enum dpt_precision precision,
                                    int steps)
{
    struct dpt_config config = rig_make_config(2 * 11, steps, "");
    config.train.accumulate = accumulate;
    config.train.precision = precision;
    config.checkpoint.every_steps = 0;
    offload(&config);
    rig_evaluate(&config, 2, DEVICE_RIG_SEQUENCES);
    return config;
}

static json_int_t tag_bytes(const json_t *account, enum dpt_memory_tag tag, const char *what)
{
    const json_t *tags = json_object_get(account, "tags");
    return json_integer_value(
        json_object_get(json_object_get(tags, dpt_memory_tag_name(tag)), what));
}

json_int_t device_rig_bytes(const struct dpt_config *config, const char *name, int world,
                            json_int_t *ret_elements)
{
    char hash[64], path[192];
    json_error_t error;
    rig_undisturbed(config, name, world, true, hash);
    (void)snprintf(path, sizeof path, "%s/node-/rank-0.memory.json", rig_dir(name));
    json_t *account = json_load_file(path, 0, &error);
    assert_non_null(account);
    for (int tag = 0; tag < DPT_MEMORY_COUNT; tag++)
        assert_int_equal(tag_bytes(account, (enum dpt_memory_tag)tag, "bytes"),
                         tag_bytes(account, (enum dpt_memory_tag)tag, "formula"));
    assert_int_equal(tag_bytes(account, DPT_MEMORY_ACTIVATIONS, "bytes"), 0);
    assert_int_equal(tag_bytes(account, DPT_MEMORY_PACKED, "bytes"), 0);
    *ret_elements = json_integer_value(json_object_get(account, "elements"));
    const json_int_t bytes =
        json_integer_value(json_object_get(json_object_get(account, "device"), "bytes"));
    rig_check_device_memory(name);
    json_decref(account);
    return bytes;
}
