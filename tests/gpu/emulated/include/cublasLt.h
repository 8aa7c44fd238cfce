/* The part of cuBLASLt that device.c uses; gemm.c of tests/gpu/emulated has the products. */
#ifndef DPT_TESTS_GPU_EMULATED_INCLUDE_CUBLASLT_H
#define DPT_TESTS_GPU_EMULATED_INCLUDE_CUBLASLT_H

#include <stddef.h>

typedef struct emulated_blas *cublasLtHandle_t;
typedef enum { CUBLAS_STATUS_SUCCESS } cublasStatus_t;

cublasStatus_t cublasLtCreate(cublasLtHandle_t *ret);
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle);
const char *cublasLtGetStatusName(cublasStatus_t status);
size_t cublasLtGetVersion(void);

#endif
