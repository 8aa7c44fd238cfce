/* Products are compiled without a sanitizer and report the memory that they touch to it
 * (kernels/cpu/simd/sanitizer.h): an operand that is too short, and a result that two threads
 * write, still end the program. Built only with sanitizers. */
#define DPT_ISA_PLAIN
#include "kernels/cpu/simd/simd.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { ROWS = 5, COLS = 32, K = 7, NOT_FOUND = 77 };

/* Which operand lacks its last element: none, a, b or c. */
enum lack { NOTHING, A, B, C, LACKS };

struct operands {
    float *a, *b, *c;
};

static float *operand(int64_t n)
{
    float *p = calloc((size_t)n, sizeof *p);
    assert_non_null(p);
    return p;
}

static struct operands make_operands(enum lack lack)
{
    return (struct operands){.a = operand(ROWS * K - (lack == A)),
                             .b = operand(K * COLS - (lack == B)),
                             .c = operand(ROWS * COLS - (lack == C))};
}

static void release(const struct operands *o)
{
    free(o->a);
    free(o->b);
    free(o->c);
}

static void product_by_rows(const struct operands *o)
{
    SIMD(product)
    (&(struct simd_product){.rows = ROWS,
                            .cols = COLS,
                            .k = K,
                            .a = o->a,
                            .a_row = K,
                            .a_col = 1,
                            .b = o->b,
                            .ldb = COLS,
                            .c = o->c,
                            .ldc = COLS},
     true);
}

static void product_by_columns(const struct operands *o)
{
    SIMD(product)
    (&(struct simd_product){.rows = ROWS,
                            .cols = COLS,
                            .k = K,
                            .a = o->a,
                            .a_row = 1,
                            .a_col = ROWS,
                            .b = o->b,
                            .ldb = COLS,
                            .c = o->c,
                            .ldc = COLS},
     true);
}

static void panel_product(const struct operands *o)
{
    SIMD(panel_product)
    (&(struct dpt_panel_product){
        .rows = ROWS, .cols = COLS, .k = K, .a = o->a, .b = o->b, .c = o->c});
}

static void (*const products[])(const struct operands *) = {product_by_rows, product_by_columns,
                                                            panel_product};
enum { PRODUCTS = sizeof products / sizeof *products };

/* Exit code of a process that runs `body`, without the sanitizer's output. */
static int code_of(void (*body)(int), int which)
{
    const pid_t pid = fork();
    if (pid == 0) {
        (void)close(STDERR_FILENO);
        body(which);
        _exit(0);
    }
    int status = 0;
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : NOT_FOUND;
}

#ifdef __SANITIZE_ADDRESS__
static void multiply_short(int which)
{
    const struct operands o = make_operands((enum lack)(which % LACKS));
    products[which / LACKS](&o);
    release(&o);
}

static void short_operands(void **state)
{
    (void)state;
    for (int which = 0; which < PRODUCTS * LACKS; which++) {
        const bool ended = code_of(multiply_short, which) != 0;
        if (ended != (which % LACKS != NOTHING))
            fail_msg("product %d, lack %d: ended %d", which / LACKS, which % LACKS, ended);
    }
}
#endif

#ifdef __SANITIZE_THREAD__
struct work {
    void (*product)(const struct operands *);
    struct operands operands;
};

static void *multiply(void *arg)
{
    const struct work *w = arg;
    w->product(&w->operands);
    return NULL;
}

/* Two threads: `which` is odd if their result is the same. They need not run at once for the
 * sanitizer to see that nothing orders them. */
static void multiply_twice(int which)
{
    const struct operands one = make_operands(NOTHING), other = make_operands(NOTHING);
    struct work work[2] = {{products[which / 2], one}, {products[which / 2], other}};
    pthread_t thread[2];
    if (which % 2 == 1)
        work[1].operands.c = one.c;
    for (int i = 0; i < 2; i++)
        if (pthread_create(&thread[i], NULL, multiply, &work[i]) != 0)
            _exit(NOT_FOUND);
    for (int i = 0; i < 2; i++)
        if (pthread_join(thread[i], NULL) != 0)
            _exit(NOT_FOUND);
    release(&one);
    release(&other);
}

static void results_of_two_threads(void **state)
{
    (void)state;
    for (int which = 0; which < 2 * PRODUCTS; which++) {
        const int code = code_of(multiply_twice, which);
        if (code == NOT_FOUND || (code != 0) != (which % 2 == 1))
            fail_msg("product %d, one result %d: exit code %d", which / 2, which % 2, code);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef __SANITIZE_ADDRESS__
        cmocka_unit_test(short_operands),
#endif
#ifdef __SANITIZE_THREAD__
        cmocka_unit_test(results_of_two_threads),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
