/* A build without CUDA says that it is one, and the remedy. */
#include "kernels/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void says_what_to_do(void **state)
{
    (void)state;
    struct dpt_device *device = NULL;
    struct dpt_err err;
    assert_int_equal(dpt_device_cuda_create(0, &device, &err), DPT_EUNSUPPORTED);
    assert_null(device);
    assert_non_null(strstr(err.text, "deploy/build cuda"));
    int count = -1;
    char fingerprint[DPT_FINGERPRINT_BYTES];
    assert_int_equal(dpt_device_cuda_look(&count, fingerprint, &err), DPT_EUNSUPPORTED);
    assert_int_equal(count, -1);
    char name[DPT_DEVICE_NAME_BYTES];
    assert_int_equal(dpt_device_cuda_name(0, name, &err), DPT_EUNSUPPORTED);
    char bus[DPT_DEVICE_BUS_BYTES];
    assert_int_equal(dpt_device_cuda_bus(0, bus, &err), DPT_EUNSUPPORTED);
    bool peer = false;
    assert_int_equal(dpt_device_cuda_peer(0, 1, &peer, &err), DPT_EUNSUPPORTED);
    assert_non_null(strstr(err.text, "deploy/build cuda"));
    assert_non_null(strstr(err.text, "cluster.device"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(says_what_to_do)};
    return cmocka_run_group_tests_name("cuda absent", tests, NULL, NULL);
}
