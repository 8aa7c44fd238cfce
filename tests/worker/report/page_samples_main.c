/* Writes the page of each sample: DIR/NAME.html. For test_page.py. */
#include "tests/worker/report/page_samples.h"
#include "worker/report/page.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

static enum dpt_status write_sample(int i, const char *dir, struct dpt_err *err)
{
    struct dpt_report reports[PAGE_SAMPLE_REPORTS_MAX];
    char path[PATH_MAX];
    const size_t n = page_sample_make(i, reports);
    (void)snprintf(path, sizeof path, "%s/%s.html", dir, page_sample_name(i));
    FILE *out = fopen(path, "we");
    enum dpt_status status = out ? dpt_report_page_write(reports, n, out, err)
                                 : dpt_fail(err, DPT_EIO, "'%s' could not be opened", path);
    if (out && fclose(out) != 0 && status == DPT_OK)
        status = dpt_fail(err, DPT_EIO, "'%s' could not be written", path);
    for (size_t k = 0; k < n; k++)
        dpt_report_free(&reports[k]);
    return status;
}

int main(int argc, char **argv)
{
    struct dpt_err err;
    if (argc != 2) {
        (void)fprintf(stderr, "usage: test_worker_report_page_samples DIR\n");
        return 2;
    }
    for (int i = 0; i < PAGE_SAMPLES; i++)
        if (write_sample(i, argv[1], &err) != DPT_OK) {
            (void)fprintf(stderr, "%s\n", err.text);
            return EXIT_FAILURE;
        }
    return EXIT_SUCCESS;
}
