// The agent in the guest: executes verbs on rxe for a line protocol over TCP, so that one boot
// serves all cases.
//
// Each connection has its own process, which owns the verbs objects created over the connection;
// they are destroyed when the process ends. A request is a line of words; numbers may have any base
// that strtoull accepts. The response is a line that starts with "ok" or "error". A client may send
// requests before it has read earlier responses.
//
//   gids                                            ok COUNT, then that many lines: INDEX GID
//   mr LENGTH SEED ACCESS                           ok MR ADDRESS LKEY RKEY; filled with the
//                                                   pattern of SEED
//   read MR                                         ok LENGTH, then the bytes
//   write MR OFFSET LENGTH, then the bytes          ok
//   qp ACCESS SENDS RECEIVES INLINE                 ok QPN
//   rtr GID_INDEX MTU QPN PSN GID DEPTH MIN_RNR     ok
//   rts PSN TIMEOUT RETRY RNR_RETRY DEPTH           ok
//   window MR ACCESS                                ok RKEY; binds a type 2 window over the MR
//   recv WR_ID MR OFFSET LENGTH                     ok
//   send WR_ID OPCODE FLAGS MR OFFSET LENGTH REMOTE RKEY X Y
//                                                   ok; X: immediate, key, add or compare; Y: swap
//   poll COUNT MILLISECONDS                         ok COUNT, then that many lines:
//                                                   WR_ID STATUS OPCODE LENGTH EXTRA
//   state                                           ok STATE
//   destroy                                         ok; destroys the QP, keeps the memory
//   counters                                        ok COUNT, then that many lines: NAME VALUE;
//                                                   the device's hw_counters
//   shell COMMAND                                   ok if the exit status is 0
//   die                                             no response; SIGKILL for the process
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PORT = 18600, MAX_MRS = 8, MAX_WORDS = 16, MAX_GIDS = 64, CQ_SIZE = 1024 };

struct memory {
    struct ibv_mr *mr;
    unsigned char *bytes;
    size_t length;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct memory memories[MAX_MRS];
static unsigned memory_count;
static FILE *in, *out;

// ---- words

static char *words[MAX_WORDS];
static unsigned word_count;

static uint64_t number(unsigned at) {
    return at < word_count ? strtoull(words[at], NULL, 0) : 0;
}

static int refuse(const char *what, int code) {
    fprintf(out, "error %s: %s\n", what, strerror(code));
    return 0;
}

static int ok(void) {
    fputs("ok\n", out);
    return 0;
}

static struct memory *memory_at(unsigned at) {
    uint64_t index = number(at);
    return index < memory_count ? &memories[index] : NULL;
}

// ---- commands: each one writes its response, and returns nonzero to end the connection

static int do_gids(void) {
    union ibv_gid gids[MAX_GIDS], none = {0};
    int used[MAX_GIDS], count = 0;
    for (int index = 0; index < MAX_GIDS; index++) {
        used[index] = !ibv_query_gid(context, 1, index, &gids[index]) &&
                      memcmp(&gids[index], &none, sizeof none);
        count += used[index];
    }
    fprintf(out, "ok %d\n", count);
    for (int index = 0; index < MAX_GIDS; index++) {
        char text[INET6_ADDRSTRLEN];
        if (used[index])
            fprintf(out, "%d %s\n", index, inet_ntop(AF_INET6, gids[index].raw, text, sizeof text));
    }
    return 0;
}

// The pattern is the low byte of a SplitMix64 sequence, as the suite computes it.
static void fill(unsigned char *bytes, size_t length, uint64_t seed) {
    for (size_t at = 0; at < length; at += 8) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        z ^= z >> 31;
        for (size_t byte = 0; byte < 8 && at + byte < length; byte++)
            bytes[at + byte] = (unsigned char)(z >> (8 * byte));
    }
}

static int do_mr(void) {
    struct memory *memory = &memories[memory_count];
    if (memory_count == MAX_MRS)
        return refuse("mr", ENOSPC);
    memory->length = number(1);
    if (posix_memalign((void **)&memory->bytes, 4096, memory->length + 1))
        return refuse("mr", ENOMEM);
    fill(memory->bytes, memory->length, number(2));
    memory->mr = ibv_reg_mr(pd, memory->bytes, memory->length, (int)number(3));
    if (!memory->mr)
        return refuse("ibv_reg_mr", errno);
    fprintf(out, "ok %u %lu %u %u\n", memory_count, (unsigned long)(uintptr_t)memory->bytes, memory->mr->lkey,
            memory->mr->rkey);
    memory_count++;
    return 0;
}

static int do_read(void) {
    struct memory *memory = memory_at(1);
    if (!memory)
        return refuse("read", EINVAL);
    fprintf(out, "ok %zu\n", memory->length);
    fwrite(memory->bytes, 1, memory->length, out);
    return 0;
}

static int do_write(void) {
    struct memory *memory = memory_at(1);
    uint64_t offset = number(2), length = number(3);
    if (!memory || offset > memory->length || length > memory->length - offset)
        return refuse("write", EINVAL) + 1; // The data cannot be distinguished from requests.
    if (fread(memory->bytes + offset, 1, length, in) != length)
        return 1;
    return ok();
}

static int do_qp(void) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq,
        .recv_cq = cq,
        .qp_type = IBV_QPT_RC,
        .cap = {(uint32_t)number(2), (uint32_t)number(3), 1, 1, (uint32_t)number(4)},
    };
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_INIT,
        .port_num = 1,
        .qp_access_flags = (unsigned)number(1),
    };
    qp = ibv_create_qp(pd, &init);
    if (!qp)
        return refuse("ibv_create_qp", errno);
    int error = ibv_modify_qp(qp, &attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error)
        return refuse("ibv_modify_qp to INIT", error);
    fprintf(out, "ok %u\n", qp->qp_num);
    return 0;
}

static int do_rtr(void) {
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTR,
        .path_mtu = (enum ibv_mtu)number(2),
        .dest_qp_num = (uint32_t)number(3),
        .rq_psn = (uint32_t)number(4),
        .max_dest_rd_atomic = (uint8_t)number(6),
        .min_rnr_timer = (uint8_t)number(7),
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = (uint8_t)number(1), .hop_limit = 64}},
    };
    if (!qp || word_count < 8 || inet_pton(AF_INET6, words[5], attributes.ah_attr.grh.dgid.raw) != 1)
        return refuse("rtr", EINVAL);
    int error = ibv_modify_qp(qp, &attributes,
                              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    return error ? refuse("ibv_modify_qp to RTR", error) : ok();
}

static int do_rts(void) {
    struct ibv_qp_attr attributes = {
        .qp_state = IBV_QPS_RTS,
        .sq_psn = (uint32_t)number(1),
        .timeout = (uint8_t)number(2),
        .retry_cnt = (uint8_t)number(3),
        .rnr_retry = (uint8_t)number(4),
        .max_rd_atomic = (uint8_t)number(5),
    };
    if (!qp)
        return refuse("rts", EINVAL);
    int error = ibv_modify_qp(qp, &attributes,
                              IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
                                  IBV_QP_MAX_QP_RD_ATOMIC);
    return error ? refuse("ibv_modify_qp to RTS", error) : ok();
}

static int64_t milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int do_window(void) {
    struct memory *memory = memory_at(1);
    struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    if (!memory || !qp)
        return refuse("window", EINVAL);
    if (!window)
        return refuse("ibv_alloc_mw", errno);
    uint32_t rkey = ibv_inc_rkey(window->rkey);
    struct ibv_send_wr bind = {.opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED}, *bad;
    bind.bind_mw.mw = window;
    bind.bind_mw.rkey = rkey;
    bind.bind_mw.bind_info = (struct ibv_mw_bind_info){
        memory->mr, (uintptr_t)memory->bytes, memory->length, (unsigned)number(2)};
    int error = ibv_post_send(qp, &bind, &bad);
    if (error)
        return refuse("post of bind", error);
    struct ibv_wc wc = {0};
    for (int64_t end = milliseconds() + 5000; !ibv_poll_cq(cq, 1, &wc);)
        if (milliseconds() > end)
            return refuse("bind", ETIMEDOUT);
    if (wc.status != IBV_WC_SUCCESS)
        return refuse("bind", EIO);
    fprintf(out, "ok %u\n", rkey);
    return 0;
}

// Reads an SGE from the words at `at`: MR OFFSET LENGTH.
static int sge_at(unsigned at, struct ibv_sge *sge) {
    struct memory *memory = memory_at(at);
    if (!memory)
        return 0;
    *sge = (struct ibv_sge){(uintptr_t)memory->bytes + number(at + 1), (uint32_t)number(at + 2), memory->mr->lkey};
    return 1;
}

static int do_recv(void) {
    struct ibv_sge sge;
    struct ibv_recv_wr request = {.wr_id = number(1), .sg_list = &sge, .num_sge = number(4) > 0}, *bad;
    if (!qp || !sge_at(2, &sge))
        return refuse("recv", EINVAL);
    int error = ibv_post_recv(qp, &request, &bad);
    return error ? refuse("ibv_post_recv", error) : ok();
}

static int do_send(void) {
    struct ibv_sge sge;
    struct ibv_send_wr request = {
        .wr_id = number(1),
        .opcode = (enum ibv_wr_opcode)number(2),
        .send_flags = (unsigned)number(3),
        .sg_list = &sge,
        .num_sge = number(6) > 0,
    }, *bad;
    if (!qp || !sge_at(4, &sge))
        return refuse("send", EINVAL);
    switch (request.opcode) {
    case IBV_WR_ATOMIC_CMP_AND_SWP:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
        request.wr.atomic.remote_addr = number(7);
        request.wr.atomic.rkey = (uint32_t)number(8);
        request.wr.atomic.compare_add = number(9);
        request.wr.atomic.swap = number(10);
        break;
    case IBV_WR_SEND_WITH_INV:
        request.invalidate_rkey = (uint32_t)number(9);
        break;
    default:
        request.wr.rdma.remote_addr = number(7);
        request.wr.rdma.rkey = (uint32_t)number(8);
        request.imm_data = htonl((uint32_t)number(9));
    }
    int error = ibv_post_send(qp, &request, &bad);
    return error ? refuse("ibv_post_send", error) : ok();
}

// rxe returns the kernel's flag for an invalidated key, which has another meaning in libibverbs.
enum { INVALIDATED = IBV_WC_WITH_INV | IBV_WC_IP_CSUM_OK };

// Prints the immediate or the invalidated key of a received message, after a word for its kind.
static void print_extra(const struct ibv_wc *wc) {
    if (wc->wc_flags & IBV_WC_WITH_IMM)
        fprintf(out, " immediate %u\n", ntohl(wc->imm_data));
    else if (wc->wc_flags & INVALIDATED)
        fprintf(out, " invalidated %u\n", wc->invalidated_rkey);
    else
        fputs(" none 0\n", out);
}

static int do_poll(void) {
    static struct ibv_wc completions[CQ_SIZE];
    int wanted = (int)number(1), count = 0;
    int64_t end = milliseconds() + (int64_t)number(2);
    if (wanted > CQ_SIZE)
        return refuse("poll", EINVAL);
    do {
        int found = ibv_poll_cq(cq, wanted - count, completions + count);
        if (found < 0)
            return refuse("ibv_poll_cq", EIO);
        count += found;
        if (!found)
            usleep(100); // The guest has one CPU, and rxe needs it.
    } while (count < wanted && milliseconds() < end);
    fprintf(out, "ok %d\n", count);
    for (int at = 0; at < count; at++) {
        const struct ibv_wc *wc = &completions[at];
        fprintf(out, "%lu %d %d %u", wc->wr_id, wc->status, wc->opcode, wc->byte_len);
        print_extra(wc);
    }
    return 0;
}

static int do_state(void) {
    struct ibv_qp_attr attributes;
    struct ibv_qp_init_attr init;
    int error = qp ? ibv_query_qp(qp, &attributes, IBV_QP_STATE, &init) : EINVAL;
    if (error)
        return refuse("ibv_query_qp", error);
    fprintf(out, "ok %d\n", attributes.qp_state);
    return 0;
}

static int do_destroy(void) {
    int error = qp ? ibv_destroy_qp(qp) : EINVAL;
    qp = NULL;
    return error ? refuse("ibv_destroy_qp", error) : ok();
}

// `lifespan` is not a counter: it is the time for which the kernel caches the counters.
static int is_counter(const struct dirent *entry) {
    return entry->d_name[0] != '.' && strcmp(entry->d_name, "lifespan");
}

static int do_counters(void) {
    char folder[128], path[512];
    struct dirent **entries;
    snprintf(folder, sizeof folder, "/sys/class/infiniband/%s/ports/1/hw_counters",
             ibv_get_device_name(context->device));
    int count = scandir(folder, &entries, is_counter, alphasort);
    if (count < 0)
        return refuse(folder, errno);
    fprintf(out, "ok %d\n", count);
    for (int at = 0; at < count; at++) {
        unsigned long long value = 0;
        snprintf(path, sizeof path, "%s/%s", folder, entries[at]->d_name);
        FILE *file = fopen(path, "r");
        // An unreadable counter is reported as a word, not as a number.
        if (file && fscanf(file, "%llu", &value) == 1)
            fprintf(out, "%s %llu\n", entries[at]->d_name, value);
        else
            fprintf(out, "%s unreadable\n", entries[at]->d_name);
        if (file)
            fclose(file);
        free(entries[at]);
    }
    free(entries);
    return 0;
}

static int do_shell(const char *line) {
    int status = system(line);
    if (status)
        fprintf(out, "error status %d of `%s`\n", WEXITSTATUS(status), line);
    else
        ok();
    return 0;
}

static int do_die(void) {
    kill(getpid(), SIGKILL);
    return 1;
}

static const struct command {
    const char *name;
    int (*run)(void);
} commands[] = {
    {"gids", do_gids},     {"mr", do_mr},     {"read", do_read},   {"write", do_write}, {"qp", do_qp},     {"rtr", do_rtr},
    {"rts", do_rts},       {"window", do_window}, {"recv", do_recv}, {"send", do_send}, {"poll", do_poll},
    {"state", do_state},   {"destroy", do_destroy}, {"die", do_die},     {"counters", do_counters},
};

static int run(char *line) {
    line[strcspn(line, "\n")] = 0;
    if (!strncmp(line, "shell ", 6))
        return do_shell(line + 6);
    word_count = 0;
    for (char *word = strtok(line, " "); word && word_count < MAX_WORDS; word = strtok(NULL, " "))
        words[word_count++] = word;
    for (size_t at = 0; word_count && at < sizeof commands / sizeof *commands; at++)
        if (!strcmp(words[0], commands[at].name))
            return commands[at].run();
    return refuse(word_count ? words[0] : "an empty line", ENOSYS);
}

// ---- connections

static void serve(int connection) {
    static char line[1024];
    in = fdopen(dup(connection), "r");
    out = fdopen(connection, "w");
    struct ibv_device **devices = ibv_get_device_list(NULL);
    context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    pd = context ? ibv_alloc_pd(context) : NULL;
    cq = pd ? ibv_create_cq(context, CQ_SIZE, NULL, NULL, 0) : NULL;
    if (!in || !out || !cq)
        exit(1);
    setvbuf(out, NULL, _IOFBF, 1 << 16);
    while (fgets(line, sizeof line, in)) {
        if (run(line))
            break;
        fflush(out);
    }
    exit(0);
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    signal(SIGCHLD, SIG_IGN);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 16)) {
        perror("listen");
        return 1;
    }
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        if (connection < 0)
            continue;
        setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (fork() == 0) {
            signal(SIGCHLD, SIG_DFL); // `system` waits for its child.
            close(listener);
            serve(connection);
        }
        close(connection);
    }
}
