/* librpma: 20 connections, one after the other, each with data that is written, flushed, read back
 * and compared, an atomic write, and messages back and forth that wait for completions by event.
 * Compiled against the distribution's librpma.
 *   librpma server ADDRESS
 *   librpma client ADDRESS
 */
#include <librpma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PORT "18521"
#define CONNECTIONS 20
#define ROUNDS 50
#define SIZE (1 << 20)
#define PIECE 65536
#define LAST UINT64_MAX
#define NEED(done)                                                                      \
    do {                                                                                \
        int error = (done);                                                             \
        if (error) fprintf(stderr, "%s: %s\n", #done, rpma_err_2str(error)), exit(1);   \
    } while (0)
#define MUST(holds) \
    do { if (!(holds)) fprintf(stderr, "line %d: not %s\n", __LINE__, #holds), exit(1); } while (0)

/* What a process has registered: `data` for writes and reads, and one word each for messages. */
struct memory {
    struct rpma_mr_local *data, *sent, *received;
    unsigned char *bytes;
    uint64_t *out, *in;
};

static void *pages(size_t size)
{
    void *start = aligned_alloc(4096, size);
    MUST(start);
    return memset(start, 0, size);
}

static struct rpma_peer *peer_of(const char *address, enum rpma_util_ibv_context_type type)
{
    struct ibv_context *context;
    struct rpma_peer *peer;
    NEED(rpma_utils_get_ibv_context(address, type, &context));
    NEED(rpma_peer_new(context, &peer));
    return peer;
}

static struct memory registered(struct rpma_peer *peer, int usage)
{
    struct memory memory = { .bytes = pages(SIZE), .out = pages(4096), .in = pages(4096) };
    NEED(rpma_mr_reg(peer, memory.bytes, SIZE, usage, &memory.data));
    NEED(rpma_mr_reg(peer, memory.out, 8, RPMA_MR_USAGE_SEND, &memory.sent));
    NEED(rpma_mr_reg(peer, memory.in, 8, RPMA_MR_USAGE_RECV, &memory.received));
    return memory;
}

static void release(struct rpma_peer *peer, struct memory *memory)
{
    NEED(rpma_mr_dereg(&memory->data));
    NEED(rpma_mr_dereg(&memory->sent));
    NEED(rpma_mr_dereg(&memory->received));
    NEED(rpma_peer_delete(&peer));
    free(memory->bytes), free(memory->out), free(memory->in);
}

static unsigned char byte(int connection, size_t index)
{
    return connection * 7 + index * 13 + index / 251;
}

static void fill(unsigned char *bytes, int connection)
{
    for (size_t index = 0; index < SIZE; index++)
        bytes[index] = byte(connection, index);
}

/* The first word is that of the atomic write. */
static void compare(const unsigned char *bytes, int connection)
{
    uint64_t word = connection;
    MUST(memcmp(bytes, &word, 8) == 0);
    for (size_t index = 8; index < SIZE; index++)
        MUST(bytes[index] == byte(connection, index));
}

/* Waits for `sends` completions of messages or other requests, and `receives` of messages. */
static void complete(struct rpma_conn *connection, int sends, int receives)
{
    struct rpma_cq *cq;
    NEED(rpma_conn_get_cq(connection, &cq));
    while (sends || receives) {
        struct ibv_wc wc;
        int error = rpma_cq_get_wc(cq, 1, &wc, NULL);
        if (error == RPMA_E_NO_COMPLETION) {
            NEED(rpma_cq_wait(cq));
            continue;
        }
        NEED(error);
        if (wc.status) fprintf(stderr, "request: %s\n", ibv_wc_status_str(wc.status)), exit(1);
        if (wc.opcode & IBV_WC_RECV) receives--;
        else sends--;
    }
    MUST(sends == 0 && receives == 0);
}

static void expect(struct rpma_conn *connection, enum rpma_conn_event expected)
{
    enum rpma_conn_event event;
    NEED(rpma_conn_next_event(connection, &event));
    if (event == expected) return;
    fprintf(stderr, "event %s\n", rpma_utils_conn_event_2str(event));
    exit(1);
}

static void serve_one(struct rpma_ep *ep, struct memory *memory,
                      struct rpma_conn_private_data *data, int number)
{
    struct rpma_conn_req *request;
    struct rpma_conn *connection;
    NEED(rpma_ep_next_conn_req(ep, NULL, &request));
    NEED(rpma_conn_req_recv(request, memory->received, 0, 8, NULL));
    NEED(rpma_conn_req_connect(&request, data, &connection));
    expect(connection, RPMA_CONN_ESTABLISHED);
    complete(connection, 0, 1);
    while (*memory->in != LAST) {
        *memory->out = *memory->in + 1;
        NEED(rpma_recv(connection, memory->received, 0, 8, NULL));
        NEED(rpma_send(connection, memory->sent, 0, 8, RPMA_F_COMPLETION_ALWAYS, NULL));
        complete(connection, 1, 1);
    }
    compare(memory->bytes, number);
    expect(connection, RPMA_CONN_CLOSED);
    NEED(rpma_conn_disconnect(connection));
    NEED(rpma_conn_delete(&connection));
}

static void serve(const char *address)
{
    struct rpma_peer *peer = peer_of(address, RPMA_UTIL_IBV_CONTEXT_LOCAL);
    struct memory memory = registered(peer, RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_READ_SRC |
                                                RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY);
    unsigned char descriptor[64];
    size_t size;
    NEED(rpma_mr_get_descriptor_size(memory.data, &size));
    MUST(size <= sizeof descriptor);
    NEED(rpma_mr_get_descriptor(memory.data, descriptor));
    struct rpma_conn_private_data data = { .ptr = descriptor, .len = size };
    struct rpma_ep *ep;
    NEED(rpma_ep_listen(peer, address, PORT, &ep));
    for (int number = 0; number < CONNECTIONS; number++)
        serve_one(ep, &memory, &data, number);
    NEED(rpma_ep_shutdown(&ep));
    release(peer, &memory);
}

static void write_and_read(struct rpma_conn *connection, struct memory *memory,
                           struct rpma_mr_remote *remote, int number)
{
    const int always = RPMA_F_COMPLETION_ALWAYS;
    uint64_t word = number;
    fill(memory->bytes, number);
    for (size_t at = 0; at < SIZE; at += PIECE) {
        NEED(rpma_write(connection, remote, at, memory->data, at, PIECE,
                        RPMA_F_COMPLETION_ON_ERROR, NULL));
        NEED(rpma_flush(connection, remote, at, PIECE, RPMA_FLUSH_TYPE_VISIBILITY, always, NULL));
        complete(connection, 1, 0);
    }
    NEED(rpma_atomic_write(connection, remote, 0, (const char *)&word, always, NULL));
    complete(connection, 1, 0);
    memset(memory->bytes, 0, SIZE);
    NEED(rpma_read(connection, memory->data, 0, remote, 0, SIZE, always, NULL));
    complete(connection, 1, 0);
    compare(memory->bytes, number);
}

static void connect_one(struct rpma_peer *peer, struct memory *memory, const char *address,
                        int number)
{
    struct rpma_conn_req *request;
    struct rpma_conn *connection;
    struct rpma_conn_private_data data;
    struct rpma_mr_remote *remote;
    NEED(rpma_conn_req_new(peer, address, PORT, NULL, &request));
    NEED(rpma_conn_req_connect(&request, NULL, &connection));
    expect(connection, RPMA_CONN_ESTABLISHED);
    NEED(rpma_conn_get_private_data(connection, &data));
    NEED(rpma_mr_remote_from_descriptor(data.ptr, data.len, &remote));
    write_and_read(connection, memory, remote, number);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        *memory->out = round * 100;
        NEED(rpma_recv(connection, memory->received, 0, 8, NULL));
        NEED(rpma_send(connection, memory->sent, 0, 8, RPMA_F_COMPLETION_ALWAYS, NULL));
        complete(connection, 1, 1);
        MUST(*memory->in == round * 100 + 1);
    }
    *memory->out = LAST;
    NEED(rpma_send(connection, memory->sent, 0, 8, RPMA_F_COMPLETION_ALWAYS, NULL));
    complete(connection, 1, 0);
    NEED(rpma_mr_remote_delete(&remote));
    NEED(rpma_conn_disconnect(connection));
    expect(connection, RPMA_CONN_CLOSED);
    NEED(rpma_conn_delete(&connection));
}

int main(int argc, char **argv)
{
    if (argc != 3) return fprintf(stderr, "librpma server|client ADDRESS\n"), 2;
    if (strcmp(argv[1], "server") == 0) {
        serve(argv[2]);
        return 0;
    }
    struct rpma_peer *peer = peer_of(argv[2], RPMA_UTIL_IBV_CONTEXT_REMOTE);
    struct memory memory = registered(peer, RPMA_MR_USAGE_WRITE_SRC | RPMA_MR_USAGE_READ_DST);
    for (int number = 0; number < CONNECTIONS; number++)
        connect_one(peer, &memory, argv[2], number);
    release(peer, &memory);
    printf("%d connections, every byte as expected\n", CONNECTIONS);
    return 0;
}
