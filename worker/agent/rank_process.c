/* Starting, killing and reaping rank processes. */
#include "worker/agent/rank_process.h"

#include "base/fs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHILD_FD_BASE = 16 /* above every fixed descriptor of a rank */, DYING_MS_MAX = 2000 };

/* glibc has a wrapper and P_PIDFD since 2.36 only. */
static int pidfd_open_call(pid_t pid)
{
    return (int)syscall(SYS_pidfd_open, pid, 0);
}

/* The descriptors of one start. */
enum {
    LINK_AGENT,
    LINK_RANK,
    OUT_READ,
    OUT_WRITE,
    STATUS_READ,
    STATUS_WRITE,
    CONFIG,
    STEP,
    NULL_FD,
    FDS
};

/* What the child needs, made before the fork. */
struct child_setup {
    const char *program;
    char *const *argv;
    int fds[FDS];
};

static void close_fds(int *fds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* Creates a memfd with `data`. `sealed`: its bytes cannot change. */
static enum dpt_status create_memfd(const void *data, size_t bytes, bool sealed, int *ret,
                                    struct dpt_err *err)
{
    const int seals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
    const int fd = memfd_create("dpt-rank", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return dpt_fail_errno(err, errno, "memory for a rank");
    *ret = fd; /* the caller closes it after a failure too */
    DPT_TRY(dpt_fs_pwrite_all(fd, data, bytes, 0, "memory for a rank", err));
    if (sealed && fcntl(fd, F_ADD_SEALS, seals) != 0)
        return dpt_fail_errno(err, errno, "memory for a rank");
    return DPT_OK;
}

/* Runs after fork in a process with threads: only async-signal-safe calls are allowed. On failure
 * writes errno to the pipe and exits. */
static _Noreturn void exec_in_child(const struct child_setup *setup)
{
    const int *fds = setup->fds;
    (void)setpgid(0, 0);
    sigset_t none;
    sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    for (int number = 1; number < SIGRTMIN; number++)
        (void)signal(number, SIG_DFL);
    /* Protects the rank until its main asks for the signal again and checks its parent. */
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int wanted[] = {fds[NULL_FD],   fds[OUT_WRITE], fds[OUT_WRITE],
                          fds[LINK_RANK], fds[CONFIG],    fds[STEP]};
    int high[sizeof wanted / sizeof wanted[0]];
    bool ok = true;
    int status_fd = fcntl(fds[STATUS_WRITE], F_DUPFD_CLOEXEC, CHILD_FD_BASE);
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++)
        ok = (high[i] = fcntl(wanted[i], F_DUPFD_CLOEXEC, CHILD_FD_BASE)) >= 0 && ok;
    for (int i = 0; ok && i < (int)(sizeof wanted / sizeof wanted[0]); i++)
        ok = dup2(high[i], i) == i; /* clears close-on-exec */
    /* The descriptors of libraries may lack close-on-exec; ours have it. Linux 5.11 and later. */
    (void)close_range(DPT_RANK_FD_STEP + 1, ~0U, CLOSE_RANGE_CLOEXEC);
    if (ok)
        execv(setup->program, setup->argv);
    int failed = errno;
    ssize_t ignored = write(status_fd, &failed, sizeof failed);
    (void)ignored;
    _exit(127);
}

/* The errno of a failed exec. 0: the exec succeeded, which has closed the pipe. */
static int read_exec_status(int fd)
{
    int failed = 0;
    ssize_t got;
    do
        got = read(fd, &failed, sizeof failed);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof failed ? failed : 0;
}

static enum dpt_status fork_and_exec(struct child_setup *setup, struct dpt_rank_process *ret,
                                     struct dpt_err *err)
{
    pid_t pid = fork();
    if (pid < 0)
        return dpt_fail_errno(err, errno, "start a rank process");
    if (pid == 0)
        exec_in_child(setup);
    (void)setpgid(pid, pid); /* fails after the exec: the child has done it then */
    close(setup->fds[STATUS_WRITE]);
    setup->fds[STATUS_WRITE] = -1;
    int failed = read_exec_status(setup->fds[STATUS_READ]);
    int pid_fd = failed == 0 ? pidfd_open_call(pid) : -1;
    if (failed == 0 && pid_fd < 0)
        failed = errno;
    if (failed != 0) {
        (void)kill(-pid, SIGKILL);
        (void)kill(pid, SIGKILL);
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            continue;
        return dpt_fail_errno(err, failed, "start a rank process: exec '%s'", setup->program);
    }
    ret->pid = pid;
    ret->pid_fd = pid_fd;
    return DPT_OK;
}

static enum dpt_status fail_descriptors(struct dpt_err *err)
{
    struct rlimit limit = {0};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    return dpt_fail(err, DPT_EOVERFLOW,
                    "start a rank process: all %llu files that this process may have open are in "
                    "use; raise the limit (ulimit -n)",
                    (unsigned long long)limit.rlim_cur);
}

static enum dpt_status open_descriptors(const struct dpt_rank_process_options *options,
                                        int fds[FDS], struct dpt_err *err)
{
    const int64_t no_step = 0;
    DPT_TRY(dpt_rank_link_pair(&fds[LINK_AGENT], err));
    if (pipe2(&fds[OUT_READ], O_CLOEXEC) != 0 || pipe2(&fds[STATUS_READ], O_CLOEXEC) != 0 ||
        fcntl(fds[OUT_READ], F_SETFL, O_NONBLOCK) != 0 ||
        (fds[NULL_FD] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0)
        return dpt_fail_errno(err, errno, "pipes of a rank process");
    DPT_TRY(create_memfd(options->config_text, options->config_bytes, true, &fds[CONFIG], err));
    return create_memfd(&no_step, sizeof no_step, false, &fds[STEP], err);
}

static const struct dpt_rank_process no_process = {
    .pid_fd = -1, .link_fd = -1, .output_fd = -1, .step_fd = -1};

enum dpt_status dpt_rank_process_start(const struct dpt_rank_process_options *options,
                                       struct dpt_rank_process *ret, struct dpt_err *err)
{
    struct dpt_rank_args *args = malloc(sizeof *args);
    if (args == NULL)
        return dpt_fail_nomem(err, "start a rank process");
    dpt_rank_start_encode(options->start, "dpt-worker", args);
    struct child_setup setup = {.program =
                                    options->program != NULL ? options->program : "/proc/self/exe",
                                .argv = args->argv};
    int *fds = setup.fds;
    for (int i = 0; i < FDS; i++)
        fds[i] = -1;
    struct dpt_rank_process process = no_process;
    enum dpt_status status = open_descriptors(options, fds, err);
    if (status == DPT_OK)
        status = fork_and_exec(&setup, &process, err);
    if (status == DPT_OK) {
        process.link_fd = fds[LINK_AGENT];
        process.output_fd = fds[OUT_READ];
        process.step_fd = fds[STEP];
        fds[LINK_AGENT] = fds[OUT_READ] = fds[STEP] = -1;
        *ret = process;
    } else if (err != NULL && err->saved_errno == EMFILE) {
        status = fail_descriptors(err);
    }
    close_fds(fds, FDS);
    free(args);
    return status;
}

void dpt_rank_process_kill(const struct dpt_rank_process *process)
{
    if (process->pid > 0)
        (void)kill(-process->pid, SIGKILL); /* not reaped, so no other process has its id */
}

bool dpt_rank_process_ended(const struct dpt_rank_process *process)
{
    siginfo_t info = {0};
    return process->pid > 0 &&
           waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == process->pid;
}

bool dpt_rank_process_reap(struct dpt_rank_process *process, int *ret_exit_code)
{
    if (!dpt_rank_process_ended(process))
        return false;
    dpt_rank_process_kill(process); /* the rest of its group */
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)process->pid, &info, WEXITED | WNOHANG) != 0)
        return false;
    *ret_exit_code = info.si_code == CLD_EXITED ? info.si_status : -info.si_status;
    process->pid = 0;
    close_fds((int[]){process->pid_fd, process->link_fd}, 2);
    process->pid_fd = process->link_fd = -1;
    return true;
}

void dpt_rank_process_fini(struct dpt_rank_process *process)
{
    close_fds((int[]){process->pid_fd, process->link_fd, process->output_fd, process->step_fd}, 4);
    *process = no_process;
}

void dpt_rank_process_forget_step(struct dpt_rank_process *process)
{
    close_fds(&process->step_fd, 1);
    process->step_fd = -1;
}

int64_t dpt_rank_process_step(const struct dpt_rank_process *process)
{
    int64_t step = 0;
    _Static_assert(sizeof step == DPT_RANK_STEP_BYTES, "the rank writes it");
    return process->step_fd >= 0 &&
                   pread(process->step_fd, &step, sizeof step, 0) == (ssize_t)sizeof step
               ? step
               : 0;
}

enum dpt_status dpt_orphans_adopt(struct dpt_err *err)
{
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0)
        return dpt_fail_errno(err, errno, "become the reaper of orphans");
    return DPT_OK;
}

static bool is_spared(pid_t pid, const pid_t *spare, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (spare[i] == pid)
            return true;
    return false;
}

/* Lists the child processes of one thread of this process. An adopted child belongs to one of the
 * threads. */
static size_t children_of_thread(const char *thread, pid_t *ret, size_t n_max)
{
    char path[64];
    int written = snprintf(path, sizeof path, "/proc/self/task/%s/children", thread);
    FILE *file = written > 0 && (size_t)written < sizeof path ? fopen(path, "re") : NULL;
    if (file == NULL)
        return 0; /* the thread ended, or the kernel has no such file */
    size_t n = 0;
    for (int pid; n < n_max && fscanf(file, "%d", &pid) == 1;)
        ret[n++] = pid;
    (void)fclose(file);
    return n;
}

static size_t list_children(pid_t *ret, size_t n_max)
{
    DIR *threads = opendir("/proc/self/task");
    if (threads == NULL)
        return 0;
    size_t n = 0;
    for (struct dirent *entry; (entry = readdir(threads)) != NULL;)
        if (entry->d_name[0] != '.')
            n += children_of_thread(entry->d_name, ret + n, n_max - n);
    closedir(threads);
    return n;
}

/* Reaps a killed process. It ends at once unless it hangs in the kernel (disk); then a later sweep
 * reaps it. */
static void reap_killed(pid_t pid)
{
    struct pollfd dying = {.fd = pidfd_open_call(pid), .events = POLLIN};
    if (dying.fd >= 0) {
        (void)poll(&dying, 1, DYING_MS_MAX);
        close(dying.fd);
    }
    (void)waitpid(pid, NULL, WNOHANG);
}

int dpt_orphans_kill(const pid_t *spare, size_t n)
{
    pid_t children[DPT_ORPHANS_MAX];
    int total = 0;
    for (int round = 0; round < DPT_ORPHAN_ROUNDS_MAX; round++) {
        size_t n_children = list_children(children, DPT_ORPHANS_MAX);
        int found = 0;
        for (size_t i = 0; i < n_children; i++)
            if (!is_spared(children[i], spare, n)) {
                (void)kill(children[i], SIGKILL);
                reap_killed(children[i]);
                found++;
            }
        if (found == 0)
            break;
        total += found;
    }
    return total;
}
