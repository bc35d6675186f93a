/* The harness of the table of verbs semantics: cases, expectations, objects that end with their
 * case, and pairs of connected QPs.
 */
#ifndef SEMANTICS_H
#define SEMANTICS_H

#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define ROWS(table) (sizeof(table) / sizeof *(table))
#define LW IBV_ACCESS_LOCAL_WRITE
#define RW IBV_ACCESS_REMOTE_WRITE
#define RR IBV_ACCESS_REMOTE_READ
#define RA IBV_ACCESS_REMOTE_ATOMIC
#define BIND IBV_ACCESS_MW_BIND
#define ALL (LW | RW | RR | RA)

/* ---- The device under test. */

extern struct ibv_context *context;
extern struct ibv_device_attr device;
extern struct ibv_port_attr port;
extern uint8_t port_num;
extern int gid_index;
extern union ibv_gid gid;

/* ---- Cases. */

typedef void body(const void *row);

/* Runs a case: `run` with `row`. `reference` is the man page or the clause that states the expected
 * result. Lists the case instead if the program was started with --list.
 */
__attribute__((format(printf, 4, 5)))
void test(const char *reference, body *run, const void *row, const char *name, ...);
/* Records a failed expectation of the case. */
__attribute__((format(printf, 3, 4)))
void fail(const char *file, int line, const char *format, ...);
/* Ends the case as skipped: the device reports that it lacks a feature that the case needs. */
__attribute__((noreturn)) void skip(const char *reason);
/* Ends the case after a failure that leaves nothing to test. */
__attribute__((noreturn)) void give_up(void);

#define EXPECT(is_so)                                                                             \
    ({                                                                                           \
        if (!(is_so)) fail(__FILE__, __LINE__, "does not hold: %s (errno %d)", #is_so, errno);    \
    })
#define EXPECT_EQ(got, wanted)                                                                    \
    ({                                                                                           \
        long long is_ = (long long)(got), should_ = (long long)(wanted);                          \
        if (is_ != should_)                                                                       \
            fail(__FILE__, __LINE__, "%s is %lld, not %lld", #got, is_, should_);                 \
    })
#define EXPECT_STATUS(got, wanted)                                                                \
    ({                                                                                           \
        enum ibv_wc_status is_ = (got), should_ = (wanted);                                       \
        if (is_ != should_)                                                                       \
            fail(__FILE__, __LINE__, "%s is \"%s\", not \"%s\"", #got, ibv_wc_status_str(is_),    \
                 ibv_wc_status_str(should_));                                                     \
    })
/* A call that has to return NULL with an error number. */
#define EXPECT_NULL(call, number)                                                                 \
    ({                                                                                           \
        errno = 0;                                                                                \
        if (call) fail(__FILE__, __LINE__, "%s succeeds", #call);                                 \
        else EXPECT_EQ(errno, number);                                                            \
    })
/* A condition that the rest of the case requires. */
#define NEED(is_so)                                                                               \
    ({                                                                                           \
        errno = 0;                                                                                \
        if (!(is_so)) need_failed(__FILE__, __LINE__, #is_so);                                    \
    })
/* Skips the case if errno says that the device does not support the call; otherwise the case
 * fails and ends.
 */
__attribute__((noreturn)) void need_failed(const char *file, int line, const char *what);

/* ---- Objects, destroyed at the end of the case, the newest first. */

typedef int destroyer(void *);
/* Keeps `object` for the case, which ends if `object` is NULL. */
void *keep(void *object, destroyer *destroy, const char *what);
/* Destroys a kept object now. Returns what the destroyer returns; after a failure the object is
 * still kept.
 */
int drop(void *object);
#define KEEP(call, destroy) (errno = 0, keep((call), (destroyer *)(destroy), #call))

struct ibv_pd *new_pd(void);
struct ibv_cq *new_cq(int depth);
struct ibv_mr *new_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
/* Zeroed pages. */
char *new_bytes(size_t length);

/* ---- QPs. */

/* How a QP is made and connected. Fields that are 0 or NULL stand for their defaults. */
struct options {
    enum ibv_qp_type type; /* RC */
    struct ibv_pd *pd;
    struct ibv_cq *cq; /* both queues */
    struct ibv_srq *srq;
    struct ibv_qp_cap cap; /* 16 requests, 4 SGEs */
    bool unsignaled;       /* sq_sig_all is 0 */
    int access;            /* of the QP; -1: none; default: ALL less LOCAL_WRITE */
    uint64_t ops;          /* send_ops_flags, for ibv_wr_* */
    uint8_t timeout, retry_cnt, rnr_retry, min_rnr_timer; /* 14, 7, 7, 1; 255 is 0 */
    enum ibv_mtu mtu;      /* 1024 */
    uint8_t max_rd_atomic; /* 4 */
};

enum { QKEY = 0x11111111, PSN = 0xfffffe };

struct ibv_qp *new_qp(const struct options *options);
int to_init(struct ibv_qp *qp, const struct options *options);
int to_rtr(struct ibv_qp *qp, uint32_t dest, const struct options *options);
int to_rts(struct ibv_qp *qp, const struct options *options);
int to_state(struct ibv_qp *qp, enum ibv_qp_state state); /* without other attributes */
/* Moves the QP from RESET to RTS. */
void connect_qp(struct ibv_qp *qp, uint32_t dest, const struct options *options);
enum ibv_qp_state state_of(struct ibv_qp *qp);
/* Expects the QP to get to `state` within 5 s: the device may take the QP there by itself. */
#define EXPECT_STATE(qp, state) expect_state(__FILE__, __LINE__, #qp, qp, state)
void expect_state(const char *file, int line, const char *what, struct ibv_qp *qp,
                  enum ibv_qp_state state);
struct ibv_ah *new_ah(struct ibv_pd *pd);

/* ---- Two connected QPs: `a` requests, `b` is the target. */

enum { SIZE = 1 << 17 };

struct end {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    char *bytes; /* SIZE */
    struct ibv_mr *mr;
};
struct pair {
    struct ibv_pd *pd;
    struct end a, b;
    struct options options;
};
/* Two QPs with a CQ each; `options` may be NULL. */
struct pair *new_pair(const struct options *options);

/* ---- Requests and completions. */

struct ibv_sge sge_of(struct ibv_mr *mr, const void *addr, uint32_t length);
/* Posts one receive of `length` bytes at `offset`. */
int post_recv(struct end *end, uint64_t wr_id, size_t offset, uint32_t length);
/* Posts one signaled request. */
int post(struct end *end, struct ibv_send_wr *wr);
/* Posts a request of `length` bytes at both ends' offset 0: SENDs, RDMA and atomics. */
int post_op(struct pair *pair, enum ibv_wr_opcode opcode, uint32_t length);
/* The next completion; the case ends if there is none within 20 s. */
#define next_wc(cq) next_wc_at(__FILE__, __LINE__, cq)
struct ibv_wc next_wc_at(const char *file, int line, struct ibv_cq *cq);
/* Expects no completion for a tenth of a second. */
#define EXPECT_NO_WC(cq) expect_no_wc(__FILE__, __LINE__, cq)
void expect_no_wc(const char *file, int line, struct ibv_cq *cq);
void fill(char *bytes, size_t length, unsigned seed);
/* The asynchronous event of `type`; the case ends if there is none within 10 s. It is not yet
 * acknowledged.
 */
#define next_event(type) next_event_at(__FILE__, __LINE__, type)
struct ibv_async_event next_event_at(const char *file, int line, enum ibv_event_type type);
/* Takes and acknowledges the queued events. */
void drain_events(void);
/* Returns true if the channel gets an event within `ms`. */
bool is_ready(int fd, int ms);

/* ---- The objects, each in a file of its own. */

void device_cases(void);
void pd_cases(void);
void mr_cases(void);
void mw_cases(void);
void cq_cases(void);
void cq_ex_cases(void);
void srq_cases(void);
void qp_cases(void);
void transition_cases(void);
void rc_cases(void);
void rc_error_cases(void);
void uc_cases(void);
void ud_cases(void);
void xrc_cases(void);
void wr_cases(void);
void event_cases(void);

#endif
