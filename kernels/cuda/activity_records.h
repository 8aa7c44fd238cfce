/* CUPTI's records as those of kernels/device_activity.h. Pure. */
#ifndef DPT_KERNELS_CUDA_ACTIVITY_RECORDS_H
#define DPT_KERNELS_CUDA_ACTIVITY_RECORDS_H

#include "kernels/cuda/cupti_calls.h"
#include "kernels/device_activity.h"

enum { DPT_CUPTI_KINDS = 6, DPT_WORK_NAME_BYTES = 64 };
/* The kinds of records that dpt_cupti_convert takes. */
extern const CUpti_ActivityKind dpt_cupti_kinds[DPT_CUPTI_KINDS];

/* Converts a record. False: the record is of another kind. The name is CUPTI's, or in `name`, or
 * NULL for a call, which has only its number. Times that CUPTI does not know are 0. */
bool dpt_cupti_convert(const CUpti_Activity *from, char name[DPT_WORK_NAME_BYTES],
                       struct dpt_device_record *ret);

#endif
