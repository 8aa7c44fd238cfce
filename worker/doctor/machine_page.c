/* The report on this machine (machine_page.h). */
#include "worker/doctor/machine_page.h"

#include "worker/agent/node_address.h"
#include "worker/doctor/machine.h"

#include <stdio.h>
#include <string.h>

enum { WHY_BYTES = 256 };

/* ---- the address that dpt-worker takes ---- */

static const char *reason_text(enum dpt_address_reason reason)
{
    static const char *const texts[DPT_ADDRESS_REASON_COUNT] = {
        [DPT_ADDRESS_NAMED] = "cluster.interface names this interface",
        [DPT_ADDRESS_ROUTE] = "the route to the server leaves by it",
        [DPT_ADDRESS_OUTWARD] = "the server runs on this machine and is reachable at this address, "
                                "so workers of other machines may come",
        [DPT_ADDRESS_LOOPBACK] = "the server's address is this machine, and no server answers at "
                                 "its address for others: all workers are here, or the server is "
                                 "not started"};
    return texts[reason];
}

static void judge_address(const struct dpt_doctor_args *args, const struct dpt_nics *nics,
                          struct dpt_findings *findings)
{
    char address[DPT_ADDRESS_BYTES];
    enum dpt_address_reason reason;
    struct dpt_err why;
    if (!args->server && !args->interface)
        return;
    if (dpt_node_address_explain(args->interface ? args->interface : "",
                                 args->server ? args->server : "", address, &reason,
                                 &why) != DPT_OK) {
        dpt_finding_set_remedy(
            dpt_findings_add(findings, DPT_FINDING_FAIL, "address", "dpt-worker", "%s", why.text),
            "give an address that this machine can reach, or "
            "--set cluster.interface=NAME of an interface above");
        return;
    }
    const struct dpt_nic *nic = dpt_nics_with_address(nics, address);
    (void)dpt_findings_add(findings, DPT_FINDING_OK, "address", "dpt-worker",
                           "peers connect to %s (%s): %s", address,
                           nic ? nic->name : "no listed interface", reason_text(reason));
    const struct dpt_nic *fastest = NULL;
    for (int i = 0; nic && i < nics->n; i++)
        if (nics->nic[i].up && nics->nic[i].addresses[0] != '\0' && nics->nic[i].mbit > nic->mbit &&
            (!fastest || nics->nic[i].mbit > fastest->mbit))
            fastest = &nics->nic[i];
    if (fastest && nic->mbit > 0)
        dpt_finding_set_remedy(
            dpt_findings_add(findings, DPT_FINDING_WARN, "address", fastest->name,
                             "is faster: %.1f Gbit/s, %s has %.1f", (double)fastest->mbit / 1e3,
                             nic->name, (double)nic->mbit / 1e3),
            "--set cluster.interface=%s, if all nodes reach each other there", fastest->name);
}

/* ---- all ---- */

/* Asks NVML about the GPUs of this machine. `why`: the reason why it could not; "": it could. */
static void ask_nvml(const struct dpt_doctor_args *args, struct dpt_gpus *gpus, char why[WHY_BYTES])
{
    struct dpt_nvml *nvml = NULL;
    struct dpt_err err;
    why[0] = '\0';
    if (gpus->n == 0)
        return;
    if (args->root[0] != '\0') {
        (void)snprintf(why, WHY_BYTES, "not asked, because --root shows another machine");
        return;
    }
    if (dpt_nvml_open(&nvml, &err) != DPT_OK ||
        dpt_gpus_ask(gpus, dpt_nvml_calls(nvml), &err) != DPT_OK)
        (void)snprintf(why, WHY_BYTES, "%.*s", WHY_BYTES - 1, err.text);
    dpt_nvml_close(&nvml);
}

/* A build without CUDA has NVML's knowledge alone. */
static void ask_cuda(const struct dpt_doctor_args *args, struct dpt_gpus *gpus,
                     struct dpt_findings *findings)
{
    struct dpt_err err;
    if (gpus->n == 0 || args->root[0] != '\0')
        return;
    const enum dpt_status status = dpt_gpus_ask_cuda(gpus, &dpt_gpus_cuda, &err);
    if (status != DPT_OK && status != DPT_EUNSUPPORTED)
        (void)dpt_findings_add(findings, DPT_FINDING_WARN, "gpu", "CUDA", "%.300s", err.text);
}

enum dpt_status dpt_machine_examine(const struct dpt_doctor_args *args, struct dpt_gpus *gpus,
                                    struct dpt_nics *nics, struct dpt_findings *findings,
                                    struct dpt_err *err)
{
    struct dpt_machine machine;
    char nvml_why[WHY_BYTES];
    DPT_TRY(dpt_gpus_read(args->root, gpus, err));
    DPT_TRY(dpt_nics_read(args->root, nics, err));
    if (args->root[0] == '\0')
        DPT_TRY(dpt_nics_add_addresses(nics, err));
    dpt_machine_read(args->root, &machine);
    struct dpt_machine_devices devices = {
        .gpus = gpus->n, .rdma = nics->n_rdma, .fastest_mbit = -1};
    for (int i = 0; i < nics->n; i++)
        if (nics->nic[i].up && nics->nic[i].mbit > devices.fastest_mbit)
            devices.fastest_mbit = nics->nic[i].mbit;
    dpt_machine_judge(&machine, &devices, findings);
    dpt_nics_judge(nics, gpus, findings);
    judge_address(args, nics, findings);
    ask_nvml(args, gpus, nvml_why);
    ask_cuda(args, gpus, findings);
    dpt_gpus_judge(gpus, nvml_why, findings);
    return DPT_OK;
}
