/* The command line of dpt-worker and the search for its server. */
#include "worker/agent/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ARGS_MAX = 160 };

static enum dpt_status parse(struct dpt_worker_options *ret, struct dpt_err *err,
                             const char *const *args)
{
    char *argv[ARGS_MAX] = {"dpt-worker"};
    int argc = 1;
    for (; args[argc - 1] != NULL; argc++)
        argv[argc] = (char *)(uintptr_t)args[argc - 1];
    return dpt_worker_options_parse(argc, argv, ret, err);
}
#define PARSE(ret, err, ...) parse(ret, err, (const char *const[]){__VA_ARGS__, NULL})

static struct dpt_worker_options options;
static struct dpt_err err;

static void test_all_options(void **state)
{
    (void)state;
    assert_int_equal(PARSE(&options, &err, "--config", "c.yaml", "--set", "train.steps=5",
                           "--nnodes=2:4", "--nproc-per-node", "3", "--rdzv-endpoint", "h:1",
                           "--node-id", "a", "--allow-change", "optimizer.lr", "--log-level",
                           "warn", "--rdzv-id", "mine", "--max-restarts=7", "--set=a=b=c",
                           "--allow-fresh"),
                     DPT_OK);
    assert_string_equal(options.config_path, "c.yaml");
    assert_string_equal(options.rdzv_endpoint, "h:1");
    assert_string_equal(options.node_id, "a");
    assert_int_equal(options.log_level, DPT_LOG_WARN);
    assert_int_equal(options.n_allow, 1);
    assert_true(options.allow_fresh);
    assert_string_equal(options.allow[0], "optimizer.lr");
    static const char *const overrides[] = {"train.steps=5",           "cluster.nnodes=2:4",
                                            "cluster.gpus_per_node=3", "run=mine",
                                            "cluster.max_restarts=7",  "a=b=c"};
    const char *found[DPT_CONFIG_OVERRIDES_MAX];
    assert_int_equal(options.n_overrides, sizeof overrides / sizeof overrides[0]);
    dpt_worker_options_overrides(&options, found);
    for (size_t i = 0; i < options.n_overrides; i++)
        assert_string_equal(found[i], overrides[i]);
    assert_false(options.help || options.version);
    assert_true(options.names_run);
    assert_int_equal(PARSE(&options, &err, "--set=run=mine"), DPT_OK);
    assert_true(options.names_run);
    assert_int_equal(PARSE(&options, &err, "--nnodes=1"), DPT_OK);
    assert_false(options.names_run);
}

/* --eval and --step are keys of the config, so that the whole run agrees on them. */
static void test_eval_options_are_config_keys(void **state)
{
    (void)state;
    assert_int_equal(PARSE(&options, &err, "--eval", "--step", "40"), DPT_OK);
    const char *found[DPT_CONFIG_OVERRIDES_MAX];
    dpt_worker_options_overrides(&options, found);
    assert_int_equal(options.n_overrides, 2);
    assert_string_equal(found[0], "train.eval_only=true");
    assert_string_equal(found[1], "train.eval_step=40");
    assert_int_equal(PARSE(&options, &err, "--eval=yes"), DPT_ECONFIG);
    assert_string_equal(err.text, "--eval takes no value");
    assert_int_equal(PARSE(&options, &err, "--eval", "--step"), DPT_ECONFIG);
    assert_string_equal(err.text, "--step needs a value: --step N");
}

static void test_help_and_version(void **state)
{
    (void)state;
    assert_int_equal(PARSE(&options, &err, "--help"), DPT_OK);
    assert_true(options.help);
    assert_int_equal(PARSE(&options, &err, "--version"), DPT_OK);
    assert_true(options.version);
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    dpt_worker_options_help(out);
    fclose(out);
    static const char *const named[] = {"--config FILE",
                                        "--set KEY=VALUE",
                                        "--nnodes",
                                        "--nproc-per-node",
                                        "--rdzv-endpoint HOST:PORT",
                                        "--node-id",
                                        "--allow-change KEY",
                                        "DPT_RDZV_ENDPOINT",
                                        "127.0.0.1:29500",
                                        "75 left with steps that are not saved",
                                        "train.steps"};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++)
        if (strstr(text, named[i]) == NULL)
            fail_msg("--help does not name %s", named[i]);
    free(text);
}

static void expect_bad(enum dpt_status status, const char *said)
{
    assert_int_equal(status, DPT_ECONFIG);
    if (strstr(err.text, said) == NULL)
        fail_msg("'%s' does not say '%s'", err.text, said);
}

static void test_bad_options(void **state)
{
    (void)state;
    expect_bad(PARSE(&options, &err, "--rdvz-endpoint", "h:1"), "did you mean --rdzv-endpoint?");
    expect_bad(PARSE(&options, &err, "--nnode=2"), "did you mean --nnodes?");
    expect_bad(PARSE(&options, &err, "--wholly-unknown"), "unknown option '--wholly-unknown'");
    expect_bad(PARSE(&options, &err, "train.py"), "unexpected argument 'train.py'");
    expect_bad(PARSE(&options, &err, "--config"), "--config needs a value: --config FILE");
    expect_bad(PARSE(&options, &err, "--config="), "--config needs a value");
    expect_bad(PARSE(&options, &err, "--help=yes"), "--help takes no value");
    expect_bad(PARSE(&options, &err, "--set", "train.steps"), "is not KEY=VALUE");
    expect_bad(PARSE(&options, &err, "--set", "=5"), "is not KEY=VALUE");
    expect_bad(PARSE(&options, &err, "--allow-change", "train.stepz"),
               "--allow-change: unknown key 'train.stepz'; did you mean 'train.steps'?");
    expect_bad(PARSE(&options, &err, "--allow-change", "train"),
               "--allow-change: unknown key 'train'; its section has: steps, ");
    expect_bad(PARSE(&options, &err, "--log-level", "loud"), "debug, info, warn, error");
    expect_bad(PARSE(&options, &err, "--", "--config"), "unknown option '--'");
}

static void test_too_many(void **state)
{
    (void)state;
    const char *args[ARGS_MAX] = {NULL};
    for (int i = 0; i <= DPT_CONFIG_OVERRIDES_MAX; i++)
        args[i] = "--set=a=b";
    expect_bad(parse(&options, &err, args), "more than 64 overrides");
    memset(args, 0, sizeof args);
    for (int i = 0; i <= DPT_RANK_ALLOW_MAX; i++)
        args[i] = "--allow-change=seed";
    expect_bad(parse(&options, &err, args), "more than 16 --allow-change");
    static char longest[DPT_OPTION_TEXT_BYTES + 10];
    memset(longest, 'x', sizeof longest - 1);
    longest[1] = '=';
    expect_bad(PARSE(&options, &err, "--set", longest), "too long");
    expect_bad(PARSE(&options, &err, "--allow-change", longest), "unknown key 'x=x");
}

static void expect_endpoint(const char *environment, const struct dpt_config *config,
                            const char *endpoint, const char *source, bool embed)
{
    struct dpt_worker_endpoint found;
    assert_int_equal(dpt_worker_endpoint(&options, environment, config, &found, &err), DPT_OK);
    assert_string_equal(found.endpoint, endpoint);
    assert_string_equal(found.source, source);
    assert_int_equal(found.embed, embed);
}

static void test_search_for_the_server(void **state)
{
    (void)state;
    struct dpt_config config = {.cluster = {.nnodes_min = 2, .nnodes_max = 2, .rdzv = "config:3"}};
    assert_int_equal(PARSE(&options, &err, "--rdzv-endpoint", "flag:1"), DPT_OK);
    expect_endpoint("env:2", &config, "flag:1", "--rdzv-endpoint", false);
    assert_int_equal(PARSE(&options, &err, "--nnodes", "2"), DPT_OK);
    expect_endpoint("env:2", &config, "env:2", "DPT_RDZV_ENDPOINT", false);
    expect_endpoint("", &config, "config:3", "cluster.rdzv", false);
    config.cluster.rdzv[0] = '\0';
    expect_endpoint(NULL, &config, "127.0.0.1:29500", "the default", false);
    expect_endpoint(NULL, NULL, "127.0.0.1:29500", "the default", false);
    config.cluster.nnodes_min = config.cluster.nnodes_max = 1;
    expect_endpoint(NULL, &config, "127.0.0.1:29500", "the default", true);
    expect_endpoint("env:2", &config, "env:2", "DPT_RDZV_ENDPOINT", false);
    struct dpt_worker_endpoint found;
    assert_int_equal(dpt_worker_endpoint(&options, "host-without-port", &config, &found, &err),
                     DPT_ECONFIG);
    assert_non_null(strstr(err.text, "DPT_RDZV_ENDPOINT 'host-without-port'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_options),
        cmocka_unit_test(test_eval_options_are_config_keys),
        cmocka_unit_test(test_help_and_version),
        cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_search_for_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
