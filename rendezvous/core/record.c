/* Copies of records. */
#include "rendezvous/core/record.h"

#include <stdlib.h>
#include <string.h>

static Dpt__RunSpec *copy_spec(const Dpt__RunSpec *spec)
{
    const size_t bytes = dpt__run_spec__get_packed_size(spec);
    uint8_t *packed = malloc(bytes + 1);
    if (packed == NULL)
        return NULL;
    (void)dpt__run_spec__pack(spec, packed);
    Dpt__RunSpec *copy = dpt__run_spec__unpack(NULL, bytes, packed);
    free(packed);
    return copy;
}

static bool copy_members(const struct dpt_rdzv_record *from, struct dpt_rdzv_record *to)
{
    if (from->n_members == 0)
        return true;
    struct dpt_rdzv_member *members = calloc(from->n_members, sizeof members[0]);
    if (members == NULL)
        return false;
    to->members = members;
    for (; to->n_members < from->n_members; to->n_members++) {
        struct dpt_rdzv_member *member = &members[to->n_members];
        *member = from->members[to->n_members];
        member->node = strdup(member->node);
        member->rack = strdup(member->rack);
        if (member->node == NULL || member->rack == NULL) {
            free((void *)member->node);
            free((void *)member->rack);
            return false;
        }
    }
    return true;
}

enum dpt_status dpt_rdzv_record_copy(const struct dpt_rdzv_record *record,
                                     struct dpt_rdzv_record *ret, struct dpt_err *err)
{
    struct dpt_rdzv_record copy = *record;
    const char **const texts[] = {&copy.run,         &copy.text,   &copy.cause,
                                  &copy.node,        &copy.host,   &copy.fingerprint,
                                  &copy.data_digest, &copy.folder, &copy.digest};
    bool good = true;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        *texts[i] = strdup(*texts[i] != NULL ? *texts[i] : "");
        good = good && *texts[i] != NULL;
    }
    copy.members = NULL;
    copy.n_members = 0;
    copy.spec = record->spec != NULL ? copy_spec(record->spec) : NULL;
    good = good && (record->spec == NULL || copy.spec != NULL) && copy_members(record, &copy);
    if (!good) {
        dpt_rdzv_record_free(&copy);
        return dpt_fail_nomem(err, "a record of run '%s'", record->run);
    }
    *ret = copy;
    return DPT_OK;
}

void dpt_rdzv_record_free(struct dpt_rdzv_record *record)
{
    const char *const texts[] = {record->run,         record->text,   record->cause,
                                 record->node,        record->host,   record->fingerprint,
                                 record->data_digest, record->folder, record->digest};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        free((void *)texts[i]);
    for (size_t i = 0; i < record->n_members; i++) {
        free((void *)record->members[i].node);
        free((void *)record->members[i].rack);
    }
    free((void *)record->members);
    if (record->spec != NULL)
        dpt__run_spec__free_unpacked((Dpt__RunSpec *)record->spec, NULL);
    *record = (struct dpt_rdzv_record){0};
}
