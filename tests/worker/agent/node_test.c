/* From a config to a node: its own keys, the run's keys, and the demo's. */
#include "base/fs.h"
#include "tests/tmp.h"
#include "worker/agent/node.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char dir[64], text[2048];
static struct dpt_worker_options options;
static struct dpt_err err;

static int setup_node(void **state)
{
    (void)state;
    static char data[20000];
    char path[128];
    if (!test_make_dir(dir, sizeof dir, "node"))
        return -1;
    memset(data, 'x', sizeof data);
    (void)snprintf(path, sizeof path, "%s/text.txt", dir);
    (void)snprintf(text, sizeof text,
                   "run: test\n"
                   "cluster: {gpus_per_node: 3, threads: 2, timeout_s: 1.5, host_group: here, "
                   "rack: r1}\n"
                   "data: {kind: text, train: %s}\n"
                   "checkpoint: {dir: %s/checkpoints}\n"
                   "log: {dir: %s/log}\n",
                   path, dir, dir);
    options = (struct dpt_worker_options){0};
    return dpt_fs_write_file_atomic(path, data, sizeof data, &err) == DPT_OK ? 0 : -1;
}

static int teardown_node(void **state)
{
    (void)state;
    return dpt_fs_remove_tree(dir, &err) == DPT_OK ? 0 : -1;
}

static void set(const char *override)
{
    (void)snprintf(options.overrides[options.n_overrides++], DPT_OPTION_TEXT_BYTES, "%s", override);
}

static struct dpt_node *create_node(enum dpt_node_source source, const char *yaml)
{
    struct dpt_node *node;
    if (dpt_node_create(&options, &(struct dpt_node_text){source, yaml, strlen(yaml), "test"},
                        &node, &err) != DPT_OK)
        fail_msg("%s", err.text);
    return node;
}

static void test_from_a_file(void **state)
{
    (void)state;
    struct dpt_node *node = create_node(DPT_NODE_FROM_FILE, text);
    assert_int_equal(node->n_ranks, 3);
    assert_int_equal(node->threads, 2);
    assert_int_equal(node->spec.timeout_ms, 1500);
    assert_int_equal(node->spec.max_world, dpt_config_world_max(&node->config));
    assert_string_equal(node->spec.config_yaml, node->config_text);
    assert_int_equal(node->facts.n_ranks, 3);
    assert_string_not_equal(node->facts.log_dir_id, node->facts.checkpoint_dir_id);
    assert_int_equal(strlen(node->data.used), DPT_HASH_HEX_BYTES - 1);
    assert_true(node->data.train.hash[0] != '\0' && node->data.train.stamp[0] != '\0');
    assert_string_equal(node->data.val.hash, "");
    assert_true(node->fingerprint[0] != '\0' && node->user[0] != '\0');
    dpt_node_destroy(&node);
    assert_null(node);
}

/* Under `fast` any device will do; how gradients go is one for all. */
static void test_fast_mixes_devices(void **state)
{
    (void)state;
    set("train.reduction=fast");
    struct dpt_node *node = create_node(DPT_NODE_FROM_FILE, text);
    assert_string_equal(node->facts.fingerprint, "gradients go by hosts");
    dpt_node_destroy(&node);
}

/* With CUDA and its state on the device a node does not start, in any build and on any machine, and
 * says what to do. */
static void test_cuda_is_refused(void **state)
{
    (void)state;
    struct dpt_node *node = NULL;
    set("cluster.device=cuda");
    assert_int_not_equal(
        dpt_node_create(&options,
                        &(struct dpt_node_text){DPT_NODE_FROM_FILE, text, strlen(text), "test"},
                        &node, &err),
        DPT_OK);
    assert_null(node);
    assert_non_null(strstr(err.text, "CUDA"));
    assert_non_null(strstr(err.text, "set cluster.device to cpu"));
}

/* The largest values of a config are within the server's limits. */
static void test_extremes(void **state)
{
    (void)state;
    set("cluster.timeout_s=600");
    set("cluster.gpus_per_node=1");
    set("cluster.nnodes=1:1024");
    set("cluster.max_restarts=1000000");
    set("train.global_batch=4096");
    set("train.micro_batch=1");
    set("train.lanes=4096");
    struct dpt_node *node = create_node(DPT_NODE_FROM_FILE, text);
    Dpt__Stamp stamp = DPT__STAMP__INIT;
    stamp.run = "test";
    stamp.node = "a";
    stamp.incarnation = 1;
    Dpt__AgentState message = DPT__AGENT_STATE__INIT, *back = NULL;
    message.version = DPT_PROTO_VERSION;
    message.stamp = &stamp;
    message.spec = &node->spec;
    static uint8_t packed[2 * DPT_PROTO_YAML_BYTES_MAX];
    size_t bytes;
    assert_int_equal(dpt_message_encode(&message.base, packed, sizeof packed, &bytes, &err),
                     DPT_OK);
    if (dpt_message_decode_agent_state(packed, bytes, &back, &err) != DPT_OK)
        fail_msg("%s", err.text);
    assert_int_equal(back->spec->max_world, DPT_MESH_MAX);
    dpt_message_free_agent_state(&back);
    dpt_node_destroy(&node);
}

/* The digest covers the keys that must agree, not each node's own keys. */
static void test_digest(void **state)
{
    (void)state;
    struct dpt_config a, b;
    char of_a[DPT_HASH_HEX_BYTES], of_b[DPT_HASH_HEX_BYTES];
    dpt_config_defaults(&a);
    b = a;
    b.cluster.threads = 7;
    b.cluster.gpus_per_node = 2;
    (void)snprintf(b.log.dir, sizeof b.log.dir, "elsewhere");
    assert_int_equal(dpt_node_config_digest(&a, of_a, &err), DPT_OK);
    assert_int_equal(dpt_node_config_digest(&b, of_b, &err), DPT_OK);
    assert_string_equal(of_a, of_b);
    b.train.steps++;
    assert_int_equal(dpt_node_config_digest(&b, of_b, &err), DPT_OK);
    assert_string_not_equal(of_a, of_b);
}

/* The run's config as another node gave it: paths are taken over, properties of that machine are
 * not; the command line has priority. */
static void test_from_the_server(void **state)
{
    (void)state;
    struct dpt_node *theirs = create_node(DPT_NODE_FROM_FILE, text);
    struct dpt_node *ours = create_node(DPT_NODE_FROM_SERVER, theirs->config_text);
    assert_string_equal(ours->digest, theirs->digest);
    assert_string_equal(ours->config.data.train, theirs->config.data.train);
    assert_string_equal(ours->facts.log_dir_id, theirs->facts.log_dir_id);
    assert_int_equal(ours->n_ranks, 1);
    assert_string_equal(ours->config.cluster.host_group, "");
    assert_string_equal(theirs->facts.rack, "r1");
    assert_string_equal(ours->facts.rack, "");
    assert_string_not_equal(ours->facts.host, theirs->facts.host);
    dpt_node_destroy(&ours);
    set("cluster.gpus_per_node=2");
    set("train.steps=77");
    ours = create_node(DPT_NODE_FROM_SERVER, theirs->config_text);
    assert_int_equal(ours->n_ranks, 2);
    assert_string_not_equal(ours->digest, theirs->digest); /* the server will refuse it */
    dpt_node_destroy(&ours);
    dpt_node_destroy(&theirs);
}

static void test_demo(void **state)
{
    (void)state;
    char log_dir[128];
    (void)snprintf(log_dir, sizeof log_dir, "log.dir=%s/demo", dir);
    set(log_dir);
    (void)snprintf(log_dir, sizeof log_dir, "checkpoint.dir=%s/demo/checkpoints", dir);
    set(log_dir);
    char *config = calloc(1, dpt_demo_config_bytes + 1);
    assert_non_null(config);
    memcpy(config, dpt_demo_config, dpt_demo_config_bytes);
    struct dpt_node *node = create_node(DPT_NODE_FROM_DEMO, config);
    char *placed;
    size_t bytes;
    assert_non_null(strstr(node->config.data.train, "/demo/" DPT_DEMO_TEXT_NAME));
    assert_int_equal(dpt_fs_read_file(node->config.data.train, 1 << 24, &placed, &bytes, &err),
                     DPT_OK);
    assert_int_equal(bytes, dpt_demo_text_bytes);
    assert_memory_equal(placed, dpt_demo_text, bytes);
    free(placed);
    free(config);
    dpt_node_destroy(&node);
}

static void expect_error(const char *yaml, const char *said)
{
    struct dpt_node *node = NULL;
    assert_int_not_equal(
        dpt_node_create(&options,
                        &(struct dpt_node_text){DPT_NODE_FROM_FILE, yaml, strlen(yaml), "test"},
                        &node, &err),
        DPT_OK);
    assert_null(node);
    if (strstr(err.text, said) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, said);
}

/* Steps are counted before ranks, the server and other nodes receive the config. */
static void test_epochs(void **state)
{
    (void)state;
    set("train={epochs: 3, steps: auto, seq_len: 10, global_batch: 100, micro_batch: 10}");
    struct dpt_node *node = create_node(DPT_NODE_FROM_FILE, text); /* 1,999 samples */
    assert_int_equal(node->config.train.epoch_steps, 19);
    assert_int_equal(node->config.train.steps, 57);
    assert_non_null(strstr(node->config_text, "  steps: 57\n  epochs: 3\n  epoch_steps: 19\n"));
    options.n_overrides = 0;
    struct dpt_node *other = create_node(DPT_NODE_FROM_SERVER, node->config_text);
    assert_string_equal(other->digest, node->digest);
    dpt_node_destroy(&other);
    set("train={epochs: 4, steps: auto}");
    other = create_node(DPT_NODE_FROM_SERVER, node->config_text);
    assert_int_equal(other->config.train.steps, 76);
    assert_string_not_equal(other->digest, node->digest);
    dpt_node_destroy(&other);
    options.n_overrides = 0;
    set("train={epochs: 3, steps: auto, epoch_steps: 18}");
    expect_error(node->config_text, "1999 samples of 10 tokens, an epoch of 19 steps, and the "
                                    "config says train.epoch_steps 18");
    options.n_overrides = 0;
    set("train={epochs: 3, seq_len: 1000}");
    set("model.context=1000");
    expect_error(text, "has 19 samples of 1000 tokens, less than one train.global_batch (32)");
    options.n_overrides = 0;
    dpt_node_destroy(&node);
}

/* An evaluation reads the checkpoints where they are: it neither makes their folder nor writes
 * there. */
static void test_evaluation_leaves_the_checkpoints_alone(void **state)
{
    (void)state;
    char path[128], value[256];
    (void)snprintf(path, sizeof path, "%s/checkpoints", dir);
    (void)snprintf(value, sizeof value, "data.val=%s/text.txt", dir);
    set(value);
    set("train.eval_only=true");
    struct dpt_node *node = create_node(DPT_NODE_FROM_FILE, text);
    assert_string_equal(node->facts.checkpoint_dir_id, "");
    assert_string_not_equal(node->facts.log_dir_id, "");
    assert_false(dpt_fs_exists(path));
    dpt_node_destroy(&node);
    assert_int_equal(dpt_fs_mkdirs(path, &err), DPT_OK);
    node = create_node(DPT_NODE_FROM_FILE, text);
    char **names;
    size_t n;
    assert_int_equal(dpt_fs_list(path, &names, &n, &err), DPT_OK);
    assert_int_equal(n, 0);
    dpt_fs_list_free(&names, n);
    dpt_node_destroy(&node);
    set("checkpoint.dir=/dev/null");
    expect_error(text, "checkpoint.dir: open folder '/dev/null': Not a directory; give another "
                       "with --set checkpoint.dir=PATH");
}

static void test_errors(void **state)
{
    (void)state;
    expect_error("run: [", "test:");
    expect_error("data: {kind: text, train: /nonexistent/text}\n", "/nonexistent/text");
    set("log.dir=/proc/nowhere");
    expect_error(text, "log.dir: create folder '/proc/nowhere'");
    set("log.dir=/dev/null/x");
    expect_error(text, "log.dir: create folder '/dev/null': Not a directory; give another with "
                       "--set log.dir=PATH");
    options.n_overrides = 0;
    set("checkpoint.dir=/dev/null");
    expect_error(text, "--set checkpoint.dir=PATH");
    options.n_overrides = 0;
    set("train.stepz=1");
    expect_error(text, "train.steps");
}

int main(void)
{
#define CASE(test) cmocka_unit_test_setup_teardown(test, setup_node, teardown_node)
    const struct CMUnitTest tests[] = {
        CASE(test_from_a_file),
        CASE(test_fast_mixes_devices),
        CASE(test_cuda_is_refused),
        CASE(test_extremes),
        CASE(test_digest),
        CASE(test_from_the_server),
        CASE(test_demo),
        CASE(test_epochs),
        CASE(test_evaluation_leaves_the_checkpoints_alone),
        CASE(test_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
