/* The socket of a link inside one host: passing registered memory and the message box, the bell,
 * the goodbye, and the end (shm.c). */
#include "worker/comm/shm.h"

#include "base/cursor.h"
#include "worker/comm/sealed.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_BYTES = 32 };

bool dpt_shm_send_packet(struct shm_link *shm, struct box_message message, int fd)
{
    uint8_t header[HEADER_BYTES];
    struct dpt_writer writer;
    dpt_writer_init(&writer, header, sizeof header);
    dpt_writer_u16(&writer, message.type);
    dpt_writer_u16(&writer, 0);
    dpt_writer_u32(&writer, message.record);
    dpt_writer_u32(&writer, message.region);
    dpt_writer_u32(&writer, 0);
    dpt_writer_u64(&writer, message.offset);
    dpt_writer_u64(&writer, message.bytes);
    struct iovec iov = {header, sizeof header};
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {0};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        cmsg->cmsg_level = SOL_SOCKET;
        cmsg->cmsg_type = SCM_RIGHTS;
        cmsg->cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(cmsg), &fd, sizeof fd);
    }
    ssize_t n;
    do
        n = sendmsg(shm->link.fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
    if (n < 0) {
        if (errno == EAGAIN || errno == ENOBUFS)
            shm->blocked = true;
        else
            shm->broken = true;
        return false;
    }
    return true;
}

bool dpt_shm_pass_regions(struct shm_link *shm)
{
    for (; shm->next_region <= COMM_REGIONS; shm->next_region++) {
        struct box_message message = {.type = MESSAGE_READY};
        int fd = shm->box.fd;
        if (shm->next_region < COMM_REGIONS) {
            const struct dpt_comm_mem *mem = shm->link.comm->listener->mems[shm->next_region];
            if (mem == NULL)
                continue;
            message = (struct box_message){.type = MESSAGE_REGION,
                                           .record = mem->open,
                                           .region = (uint32_t)mem->region,
                                           .bytes = mem->bytes};
            fd = mem->fd;
        }
        if (!dpt_shm_send_packet(shm, message, fd))
            return false;
    }
    return true;
}

/* Maps a region that the peer passed; consumes fd. */
static enum dpt_status map_region(struct shm_link *shm, const struct box_message *message, int fd,
                                  struct dpt_err *err)
{
    enum dpt_status status = DPT_EPROTO;
    struct stat st;
    const bool open = message->record != 0;
    const char *why = "it passed a region without a descriptor";
    if (fd < 0)
        goto out;
    why = "it passed an unsealed or ill-sized region";
    if (message->region >= COMM_REGIONS || shm->regions[message->region].data != NULL ||
        message->bytes == 0 || fstat(fd, &st) != 0 || (uint64_t)st.st_size < message->bytes ||
        !dpt_sealed_keeps_size(fd) || (open && !dpt_sealed_is_open(fd)))
        goto out;
    why = "cannot map its memory";
    status = DPT_ENOMEM;
    void *data = mmap(NULL, (size_t)message->bytes, open ? PROT_READ | PROT_WRITE : PROT_READ,
                      MAP_SHARED, fd, 0);
    if (data == MAP_FAILED)
        goto out;
    shm->regions[message->region].data = data;
    shm->regions[message->region].bytes = (size_t)message->bytes;
    shm->regions[message->region].open = open;
    status = DPT_OK;
out:
    if (fd >= 0)
        close(fd);
    return status == DPT_OK ? status : dpt_conn_broken(&shm->link, status, err, why);
}

/* Takes READY: the peer has passed all regions and, as `fd`, its box. Consumes fd. */
static enum dpt_status take_ready(struct shm_link *shm, int fd, struct dpt_err *err)
{
    struct dpt_err why;
    const enum dpt_status status = dpt_box_attach(&shm->box, fd, &why);
    if (fd >= 0)
        close(fd);
    if (status != DPT_OK)
        return dpt_conn_broken(&shm->link, status, err, why.text);
    shm->peer_ready = true;
    return DPT_OK;
}

/* Takes a packet of the socket. Consumes fd. */
static enum dpt_status take_packet(struct shm_link *shm, const uint8_t *packet, size_t bytes,
                                   int fd, struct dpt_err *err)
{
    struct dpt_reader reader;
    dpt_reader_init(&reader, packet, bytes);
    struct box_message message = {.type = dpt_reader_u16(&reader)};
    message.credits = dpt_reader_u16(&reader);
    message.record = dpt_reader_u32(&reader);
    message.region = dpt_reader_u32(&reader);
    (void)dpt_reader_u32(&reader);
    message.offset = dpt_reader_u64(&reader);
    message.bytes = dpt_reader_u64(&reader);
    if (dpt_reader_status(&reader, "message", NULL) != DPT_OK || bytes != HEADER_BYTES)
        message.type = 0;
    if (message.type == MESSAGE_REGION && !shm->peer_ready)
        return map_region(shm, &message, fd, err);
    if (message.type == MESSAGE_READY && !shm->peer_ready)
        return take_ready(shm, fd, err);
    if (fd >= 0) {
        close(fd);
        message.type = 0;
    }
    switch (message.type) {
    case MESSAGE_BYE:
        shm->gave_up = message.region != 0;
        shm->gave_up_suspect = dpt_conn_suspect(message.record);
        shm->link.bye = !shm->gave_up;
        return DPT_OK;
    case MESSAGE_BELL:
        return DPT_OK;
    default:
        return dpt_conn_broken(&shm->link, DPT_EPROTO, err, "a malformed message");
    }
}

/* Receives one packet and its descriptor (-1: none). The kernel drops descriptors beyond the
 * control buffer. */
static ssize_t receive_packet(struct shm_link *shm, uint8_t *packet, size_t bytes_max, int *ret_fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct iovec iov = {packet, bytes_max};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    if (!shm->peer_ready) { /* the peer passes descriptors only before READY */
        msg.msg_control = control.bytes;
        msg.msg_controllen = sizeof control.bytes;
    }
    ssize_t n;
    do
        n = recvmsg(shm->link.fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    while (n < 0 &&
           (errno == EINTR || errno == ECONNRESET)); /* a reset is reported once; then comes EOF */
    *ret_fd = -1;
    if (n < 0)
        return n;
    const struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
    if (cmsg != NULL && cmsg->cmsg_level == SOL_SOCKET && cmsg->cmsg_type == SCM_RIGHTS &&
        cmsg->cmsg_len == CMSG_LEN(sizeof *ret_fd))
        memcpy(ret_fd, CMSG_DATA(cmsg), sizeof *ret_fd);
    return n;
}

enum dpt_status dpt_shm_read_socket(struct shm_link *shm, bool *ret_eof, struct dpt_err *err)
{
    struct dpt_conn *link = &shm->link;
    uint8_t packet[HEADER_BYTES + 1]; /* one more, to detect a longer packet */
    while (!*ret_eof && !link->gone && !shm->gave_up) {
        int fd;
        const ssize_t n = receive_packet(shm, packet, sizeof packet, &fd);
        if (n < 0 && errno == EAGAIN)
            break;
        if (n < 0)
            return dpt_conn_lost(link, -1, err, strerror(errno));
        *ret_eof = n == 0;
        if (!*ret_eof)
            DPT_TRY(take_packet(shm, packet, (size_t)n, fd, err));
    }
    return DPT_OK;
}
