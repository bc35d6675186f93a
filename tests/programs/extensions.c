/* Additions to verbs after their first version, between two QPs of this process: windows, XRC, device memory, thread
 * domains, on-demand and empty regions, ATOMIC WRITE and FLUSH, clocks, and the error numbers of each. Runs alone.
 */
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <linux/udmabuf.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int failures;
#define CHECK(is_so) do { int ok = (is_so); if (!ok) { failures++; printf("%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #is_so, errno); } } while (0)
#define FAILS(call, number) do { errno = 0; CHECK(!(call)); CHECK(errno == (number)); } while (0)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *from, *to;
static char *bytes; /* Two pages: the source of requests, then their target. */
static struct ibv_mr *local;
enum { PAGE = 4096, GID_INDEX = 1 };
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

static void connect_to(struct ibv_qp *qp, uint32_t number)
{
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = number, .max_dest_rd_atomic = 4,
        .min_rnr_timer = 12, .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX, .hop_limit = 1 } } };
    CHECK(ibv_query_gid(context, 1, GID_INDEX, &attr.ah_attr.grh.dgid) == 0);
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN
                        | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN
                        | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static struct ibv_qp *new_qp(void)
{
    struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1, .pd = pd,
        .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_BIND_MW | 1 << 11 /* FLUSH */ };
    struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
    CHECK(qp != NULL);
    return qp;
}

/* Replaces the QPs, which are in ERR after an error, by two new ones that are connected to each other. */
static void new_pair(void)
{
    if (from) CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0);
    from = new_qp(), to = new_qp();
    connect_to(from, to->qp_num);
    connect_to(to, from->qp_num);
}

static struct ibv_wc completion(void)
{
    struct ibv_wc wc = { .status = IBV_WC_GENERAL_ERR };
    for (int i = 0; i < 5000000; i++)
        if (ibv_poll_cq(cq, 1, &wc) > 0) return wc;
    CHECK(!"a completion");
    return wc;
}

/* Writes eight bytes of `value` to `addr`. */
static enum ibv_wc_status write_to(uint64_t addr, uint32_t rkey, char value)
{
    memset(bytes, value, 8);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = local->lkey };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .wr.rdma = { addr, rkey } }, *bad;
    CHECK(ibv_post_send(from, &wr, &bad) == 0);
    return completion().status;
}

static void windows(void)
{
    char *target = bytes + PAGE;
    struct ibv_mr *mr = ibv_reg_mr(pd, target, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct ibv_mw *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1), *two = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
    FAILS(ibv_alloc_mw(pd, 3), EINVAL);
    CHECK(mr && one && two && one->type == IBV_MW_TYPE_1 && one->pd == pd);
    struct ibv_mw_bind bind = { .wr_id = 1, .bind_info = { mr, (uintptr_t)target, 64, IBV_ACCESS_REMOTE_WRITE } };
    uint32_t old = one->rkey;
    CHECK(ibv_bind_mw(to, one, &bind) == 0 && one->rkey != old);
    struct ibv_wc wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW && wc.wr_id == 1);
    CHECK(write_to((uintptr_t)target, one->rkey, 'a') == IBV_WC_SUCCESS && target[7] == 'a');
    CHECK(ibv_dereg_mr(mr) == EBUSY);
    bind.bind_info.length = 0;
    CHECK(ibv_bind_mw(to, one, &bind) == 0 && completion().status == IBV_WC_SUCCESS);
    /* The program chooses the last eight bits of a type 2 window's key; the other bits that it passes do not count. */
    struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW, .bind_mw = { two, ibv_inc_rkey(two->rkey),
        { mr, (uintptr_t)target, 64, IBV_ACCESS_REMOTE_WRITE } } }, *bad;
    uint32_t key = wr.bind_mw.rkey;
    wr.bind_mw.mw = one;
    CHECK(ibv_post_send(to, &wr, &bad) == EINVAL && bad == &wr);
    wr.bind_mw.mw = two, wr.bind_mw.rkey = key & 0xff;
    CHECK(ibv_post_send(to, &wr, &bad) == 0 && completion().status == IBV_WC_SUCCESS);
    CHECK(two->rkey == key);
    CHECK(write_to((uintptr_t)target, key, 'b') == IBV_WC_SUCCESS && target[7] == 'b');
    struct ibv_send_wr invalidate = { .opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = key };
    CHECK(ibv_post_send(to, &invalidate, &bad) == 0);
    wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV);
    CHECK(write_to((uintptr_t)target, key, 'c') == IBV_WC_REM_ACCESS_ERR && target[7] == 'b');
    /* Binds that fail, with and without IBV_SEND_SIGNALED: outside of the region, and with a region of another domain. */
    struct ibv_pd *other = ibv_alloc_pd(context);
    struct ibv_mr *foreign = ibv_reg_mr(other, target, PAGE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
    struct { struct ibv_mr *mr; uintptr_t addr; } wrong[] = {
        { mr, (uintptr_t)target - 1 }, { mr, (uintptr_t)target + PAGE - 63 }, { foreign, (uintptr_t)target } };
    for (int i = 0; i < 6; i++) {
        new_pair();
        struct ibv_mw_bind_info info = { wrong[i / 2].mr, wrong[i / 2].addr, 64, IBV_ACCESS_REMOTE_READ };
        wr.bind_mw.bind_info = bind.bind_info = info;
        int posted = i % 2 ? ibv_post_send(to, &wr, &bad) : ibv_bind_mw(to, one, &bind);
        if (i == 4) CHECK(posted == EPERM); /* verbs.h checks this before it calls the library. */
        else CHECK(posted == 0 && completion().status == IBV_WC_MW_BIND_ERR);
    }
    CHECK(ibv_dereg_mr(foreign) == 0 && ibv_dealloc_pd(other) == 0);
    CHECK(ibv_dealloc_mw(one) == 0 && ibv_dealloc_mw(two) == 0 && ibv_dereg_mr(mr) == 0);
    new_pair();
}

/* ATOMIC WRITE, and FLUSH, whose function and flags are not in the headers of this release. */
static void placement(void)
{
    typedef void flush_function(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
    uint64_t value = 0x1122334455667788, *target = (uint64_t *)(bytes + PAGE);
    struct ibv_mr *mr = ibv_reg_mr(pd, target, PAGE, ALL | 1 << 8 /* FLUSH_GLOBAL */);
    FAILS(ibv_reg_mr(pd, target, PAGE, ALL | 1 << 9), EOPNOTSUPP);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(from);
    ibv_wr_start(qp);
    qp->wr_id = 7;
    ibv_wr_atomic_write(qp, mr->rkey, (uintptr_t)target, &value);
    CHECK(ibv_wr_complete(qp) == 0);
    struct ibv_wc wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_ATOMIC_WRITE && wc.wr_id == 7 && *target == value);
    flush_function *flush = *(flush_function **)((char *)qp + 352);
    ibv_wr_start(qp);
    flush(qp, mr->rkey, (uintptr_t)target, 8, 4, 0);
    CHECK(ibv_wr_complete(qp) == EINVAL);
    struct ibv_qp_attr attr = { .qp_access_flags = ALL | 1 << 8 };
    CHECK(ibv_modify_qp(to, &attr, IBV_QP_ACCESS_FLAGS) == 0);
    ibv_wr_start(qp);
    flush(qp, mr->rkey, (uintptr_t)target, 8, 1, 0);
    CHECK(ibv_wr_complete(qp) == 0);
    wc = completion();
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == 8 /* FLUSH */);
    CHECK(ibv_dereg_mr(mr) == 0);
}

static void device_memory(void)
{
    struct ibv_device_attr_ex attr;
    CHECK(ibv_query_device_ex(context, NULL, &attr) == 0 && attr.max_dm_size > 0);
    struct ibv_alloc_dm_attr wanted = { .length = attr.max_dm_size + 1 };
    FAILS(ibv_alloc_dm(context, &wanted), ENOMEM);
    wanted.length = 0;
    FAILS(ibv_alloc_dm(context, &wanted), EINVAL);
    wanted.length = 128, wanted.comp_mask = 1;
    FAILS(ibv_alloc_dm(context, &wanted), EINVAL);
    wanted.comp_mask = 0, wanted.log_align_req = 6;
    struct ibv_dm *dm = ibv_alloc_dm(context, &wanted);
    char text[8] = "12345678", back[8];
    CHECK(dm && ibv_memcpy_to_dm(dm, 2, text, 4) == EINVAL && ibv_memcpy_to_dm(dm, 128, text, 4) == EINVAL);
    CHECK(ibv_memcpy_to_dm(dm, 120, text, 8) == 0 && ibv_memcpy_from_dm(back, dm, 120, 8) == 0 && !memcmp(text, back, 8));
    FAILS(ibv_reg_dm_mr(pd, dm, 0, 128, ALL), EINVAL);
    FAILS(ibv_reg_dm_mr(pd, dm, 64, 128, ALL | IBV_ACCESS_ZERO_BASED), EINVAL);
    struct ibv_mr *mr = ibv_reg_dm_mr(pd, dm, 64, 64, ALL | IBV_ACCESS_ZERO_BASED);
    CHECK(mr && mr->length == 64 && ibv_free_dm(dm) == EBUSY);
    CHECK(write_to(8, mr->rkey, 'd') == IBV_WC_SUCCESS);
    CHECK(ibv_memcpy_from_dm(back, dm, 72, 8) == 0 && !memcmp(back, "dddddddd", 8));
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_free_dm(dm) == 0);
}

static void domains(void)
{
    struct ibv_td_init_attr none = { 0 }, unknown = { 1 };
    FAILS(ibv_alloc_td(context, &unknown), EINVAL);
    struct ibv_td *td = ibv_alloc_td(context, &none);
    struct ibv_pd *own = ibv_alloc_pd(context);
    struct ibv_parent_domain_init_attr attr = { .td = td };
    FAILS(ibv_alloc_parent_domain(context, &attr), EINVAL);
    attr.pd = own, attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS;
    FAILS(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
    for (int bit = 2; bit < 32; bit++) {
        attr.comp_mask = 1u << bit;
        FAILS(ibv_alloc_parent_domain(context, &attr), EOPNOTSUPP);
    }
    attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
    CHECK(parent && ibv_dealloc_pd(own) == EBUSY && ibv_dealloc_td(td) == EBUSY);
    struct ibv_mr *mr = ibv_reg_mr(parent, bytes, PAGE, 0);
    CHECK(mr && mr->pd == parent && ibv_dealloc_pd(parent) == EBUSY && ibv_dereg_mr(mr) == 0);
    struct ibv_cq_init_attr_ex in = { .cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD, .parent_domain = own };
    FAILS(ibv_create_cq_ex(context, &in), EINVAL);
    in.parent_domain = parent;
    struct ibv_cq_ex *queue = ibv_create_cq_ex(context, &in);
    CHECK(queue && ibv_dealloc_pd(parent) == EBUSY && ibv_destroy_cq(ibv_cq_ex_to_cq(queue)) == 0);
    CHECK(ibv_dealloc_pd(parent) == 0 && ibv_dealloc_pd(own) == 0 && ibv_dealloc_td(td) == 0);
}

/* Returns a DMA buffer of two pages, or -1 if the kernel has no udmabuf. */
static int dma_buffer(void)
{
    int device = open("/dev/udmabuf", O_RDWR), memory = memfd_create("buffer", MFD_ALLOW_SEALING);
    struct udmabuf_create wanted = { .memfd = memory, .size = 2 * PAGE };
    if (device < 0) return close(memory), -1;
    CHECK(ftruncate(memory, 2 * PAGE) == 0 && fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    int buffer = ioctl(device, UDMABUF_CREATE, &wanted);
    close(memory), close(device);
    return buffer;
}

static void dma_buffers(void)
{
    /* Linux checks these ahead of the descriptor. */
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10040, -1, ALL), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10000, -1, ALL | IBV_ACCESS_MW_BIND), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10000, -1, IBV_ACCESS_REMOTE_WRITE), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10000, -1, ALL), EBADF);
    int buffer = dma_buffer();
    if (buffer < 0) {
        puts("no DMA buffers: the kernel has no /dev/udmabuf");
        return;
    }
    char *seen = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, buffer, 0);
    CHECK(seen != MAP_FAILED);
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE + 1, 0x10000, buffer, ALL), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, UINT64_MAX - PAGE + 1, PAGE, 0x10000, buffer, ALL), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, 2 * PAGE, 1, 0x10000, buffer, ALL), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, 0, 0, 0x10000, buffer, ALL), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10040, buffer, ALL), EINVAL);
    FAILS(ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10000, buffer, ALL | IBV_ACCESS_ZERO_BASED), EINVAL);
    struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, PAGE, PAGE, 0x10000, buffer, ALL);
    CHECK(mr && mr->addr == (void *)PAGE && mr->length == PAGE && write_to(0x10000, mr->rkey, 'd') == IBV_WC_SUCCESS);
    CHECK(seen[PAGE - 1] == 0 && seen[PAGE] == 'd' && seen[PAGE + 7] == 'd' && seen[PAGE + 8] == 0);
    CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, ALL) == IBV_REREG_MR_ERR_INPUT);
    CHECK(ibv_dereg_mr(mr) == 0);
    /* Within a page; the region keeps the buffer, and is a source, too. */
    mr = ibv_reg_dmabuf_mr(pd, PAGE + 64, 16, 0x10040, buffer, ALL | IBV_ACCESS_RELAXED_ORDERING);
    struct ibv_mr *readable = ibv_reg_dmabuf_mr(pd, 0, PAGE, 0x20000, buffer, IBV_ACCESS_REMOTE_READ);
    CHECK(mr && readable && close(buffer) == 0 && write_to(0x10048, mr->rkey, 'e') == IBV_WC_SUCCESS);
    CHECK(seen[PAGE + 71] == 0 && seen[PAGE + 72] == 'e' && seen[PAGE + 79] == 'e' && seen[PAGE + 80] == 0);
    memset(seen, 'f', 8);
    struct ibv_sge sge = { .addr = 0x10048, .length = 8, .lkey = mr->lkey };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_READ, .sg_list = &sge, .num_sge = 1, .wr.rdma = { 0x20000, readable->rkey } }, *bad;
    CHECK(ibv_post_send(from, &wr, &bad) == 0 && completion().status == IBV_WC_SUCCESS && seen[PAGE + 72] == 'f');
    CHECK(write_to(0x20000, readable->rkey, 'g') == IBV_WC_REM_ACCESS_ERR && seen[0] == 'f');
    new_pair();
    CHECK(write_to(0x10049, mr->rkey, 'g') == IBV_WC_REM_ACCESS_ERR && seen[PAGE + 79] == 'f');
    new_pair();
    CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(readable) == 0 && munmap(seen, 2 * PAGE) == 0);
}

static void regions(void)
{
    /* A null region reads as zeros. */
    struct ibv_mr *null = ibv_alloc_null_mr(pd), *mr = ibv_reg_mr_iova(pd, bytes + PAGE, PAGE, 0x10000, ALL);
    CHECK(null && mr && mr->addr == bytes + PAGE);
    memset(bytes + PAGE, 1, 16);
    struct ibv_sge sge = { .addr = 0x5000, .length = 8, .lkey = null->lkey };
    struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE, .sg_list = &sge, .num_sge = 1, .wr.rdma = { 0x10008, mr->rkey } }, *bad;
    CHECK(ibv_post_send(from, &wr, &bad) == 0 && completion().status == IBV_WC_SUCCESS);
    CHECK(bytes[PAGE + 7] == 1 && bytes[PAGE + 8] == 0 && bytes[PAGE + 15] == 0);
    /* Peers write to it by its L_Key, as perftest does. It has no R_Key of its own. */
    CHECK(null->length == SIZE_MAX && null->rkey == 0 && write_to(0x5000, null->lkey, 'n') == IBV_WC_SUCCESS);
    CHECK(ibv_dereg_mr(null) == 0 && ibv_dereg_mr(mr) == 0);
    /* Zero-based regions: by the function ibv_reg_mr, and by the macro ibv_reg_mr with flags that are not constant. */
    volatile int flags = ALL | IBV_ACCESS_ZERO_BASED;
    struct ibv_mr *based[] = { (ibv_reg_mr)(pd, bytes + PAGE, PAGE, flags), ibv_reg_mr(pd, bytes + PAGE, PAGE, flags),
        ibv_reg_mr_iova(pd, bytes + PAGE, PAGE, 0x10000, flags) };
    for (int i = 0; i < 3; i++) {
        CHECK(based[i] && write_to(16, based[i]->rkey, 'x' + i) == IBV_WC_SUCCESS && bytes[PAGE + 16] == 'x' + i);
        CHECK(based[i]->addr == bytes + PAGE);
        CHECK(ibv_rereg_mr(based[i], IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes + PAGE + 64, 64, 0) == 0);
        CHECK(write_to(0, based[i]->rkey, 'r' + i) == IBV_WC_SUCCESS && bytes[PAGE + 64] == 'r' + i);
        CHECK(ibv_dereg_mr(based[i]) == 0);
    }
    struct ibv_mr *empty = ibv_reg_mr(pd, bytes + PAGE, 0, ALL);
    CHECK(empty && empty->length == 0 && ibv_rereg_mr(empty, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, bytes, 0, 0) == IBV_REREG_MR_ERR_INPUT);
    wr = (struct ibv_send_wr){ .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = { (uintptr_t)bytes + PAGE, empty->rkey } };
    CHECK(ibv_post_send(from, &wr, &bad) == 0 && completion().status == IBV_WC_SUCCESS && ibv_dereg_mr(empty) == 0);
    struct ibv_device_attr_ex attr;
    CHECK(ibv_query_device_ex(context, NULL, &attr) == 0);
    sge = (struct ibv_sge){ .addr = (uintptr_t)bytes, .length = PAGE, .lkey = local->lkey };
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 0) == EINVAL);
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 2, &sge, 1) == EINVAL);
    CHECK(ibv_advise_mr(pd, 9, 0, &sge, 1) == EOPNOTSUPP);
    sge.lkey ^= 0x55;
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);
    if (attr.odp_caps.general_caps == 0) return; /* process_vm_readv is forbidden. */
    /* An on-demand region over the whole address space gives access to mapped pages only. */
    struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, ALL | IBV_ACCESS_ON_DEMAND);
    sge.lkey = all->lkey;
    CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == 0);
    char *late = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(write_to((uintptr_t)late, all->rkey, 'o') == IBV_WC_SUCCESS && late[7] == 'o');
    munmap(late, PAGE);
    CHECK(write_to((uintptr_t)late, all->rkey, 'o') != IBV_WC_SUCCESS);
    CHECK(ibv_dereg_mr(all) == 0);
    while (ibv_poll_cq(cq, 1, &(struct ibv_wc){ 0 }) > 0) {}
    new_pair();
}

static void xrc(void)
{
    char name[] = "/tmp/xrc-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    struct ibv_xrcd_init_attr attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file };
    FAILS(ibv_open_xrcd(context, &attr), EAGAIN);
    attr.oflags = O_CREAT;
    struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &attr), *again = ibv_open_xrcd(context, &attr);
    CHECK(xrcd && again);
    attr.oflags = O_CREAT | O_EXCL;
    FAILS(ibv_open_xrcd(context, &attr), EINVAL);
    attr.comp_mask = IBV_XRCD_INIT_ATTR_FD;
    FAILS(ibv_open_xrcd(context, &attr), EINVAL);
    struct ibv_srq_init_attr_ex wanted = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd,
        .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD };
    FAILS(ibv_create_srq_ex(context, &wanted), EINVAL);
    wanted.cq = cq, wanted.comp_mask |= IBV_SRQ_INIT_ATTR_CQ;
    struct ibv_srq *srq = ibv_create_srq_ex(context, &wanted);
    uint32_t number = 0, other;
    CHECK(srq && ibv_get_srq_num(srq, &number) == 0 && ibv_close_xrcd(xrcd) == EBUSY);
    struct ibv_srq_init_attr plain = { .attr = { .max_wr = 4, .max_sge = 1 } };
    struct ibv_srq *basic = ibv_create_srq(pd, &plain);
    CHECK(ibv_get_srq_num(basic, &other) == EINVAL && ibv_destroy_srq(basic) == 0);
    struct ibv_srq_attr size = { .max_wr = 64 };
    CHECK(ibv_modify_srq(srq, &size, IBV_SRQ_MAX_WR) == EINVAL);
    struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd };
    FAILS(ibv_create_qp_ex(context, &init), EINVAL);
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD, init.xrcd = xrcd;
    struct ibv_qp *receiver = ibv_create_qp_ex(context, &init);
    init = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = cq,
        .cap = { .max_send_wr = 4, .max_send_sge = 1 }, .sq_sig_all = 1 };
    struct ibv_qp *sender = ibv_create_qp_ex(context, &init);
    CHECK(receiver && sender && !receiver->send_cq && !receiver->pd && !sender->recv_cq);
    struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
        .qp_num = receiver->qp_num, .xrcd = again, .qp_type = IBV_QPT_XRC_RECV };
    struct ibv_qp *opened = ibv_open_qp(context, &open);
    CHECK(opened && opened->qp_num == receiver->qp_num && ibv_close_xrcd(again) == EBUSY);
    open.qp_num = sender->qp_num;
    FAILS(ibv_open_qp(context, &open), EINVAL);
    connect_to(receiver, sender->qp_num);
    connect_to(sender, receiver->qp_num);
    /* The QP exists as long as one of its handles. */
    CHECK(ibv_destroy_qp(receiver) == 0);
    struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = 8, .lkey = local->lkey };
    struct ibv_recv_wr recv = { .wr_id = 5, .sg_list = &sge, .num_sge = 1 }, *bad_recv;
    CHECK(ibv_post_srq_recv(srq, &recv, &bad_recv) == 0);
    struct ibv_send_wr wr = { .wr_id = 6, .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1, .qp_type.xrc.remote_srqn = number }, *bad;
    CHECK(ibv_post_send(sender, &wr, &bad) == 0);
    struct ibv_wc one = completion(), two = completion();
    CHECK(one.status == IBV_WC_SUCCESS && two.status == IBV_WC_SUCCESS && one.wr_id + two.wr_id == 11);
    CHECK(ibv_destroy_qp(opened) == 0 && ibv_destroy_qp(sender) == 0 && ibv_destroy_srq(srq) == 0);
    /* The domains keep their file open, so that no other file gets the same inode. */
    close(file);
    strcpy(name + strlen(name) - 6, "XXXXXX");
    file = mkstemp(name);
    unlink(name);
    attr = (struct ibv_xrcd_init_attr){ IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, file, O_CREAT | O_EXCL };
    struct ibv_xrcd *another = ibv_open_xrcd(context, &attr);
    CHECK(another && ibv_close_xrcd(another) == 0);
    CHECK(ibv_close_xrcd(xrcd) == 0 && ibv_close_xrcd(again) == 0);
    close(file);
}

static void clocks(void)
{
    struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
    CHECK(ibv_query_rt_values_ex(context, &values) == 0);
    struct timespec before = values.raw_clock;
    usleep(2000);
    CHECK(ibv_query_rt_values_ex(context, &values) == 0);
    long passed = (values.raw_clock.tv_sec - before.tv_sec) * 1000000000 + values.raw_clock.tv_nsec - before.tv_nsec;
    CHECK(passed >= 2000000 && passed < 2000000000);
    values.comp_mask = 2;
    CHECK(ibv_query_rt_values_ex(context, &values) == EOPNOTSUPP);
    struct ibv_cq_init_attr_ex attr = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK };
    struct ibv_cq_ex *timed = ibv_create_cq_ex(context, &attr);
    struct ibv_qp_init_attr init = { .send_cq = ibv_cq_ex_to_cq(timed), .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
    struct ibv_send_wr wr = { .opcode = IBV_WR_SEND }, *bad;
    CHECK(ibv_modify_qp(qp, &error, IBV_QP_STATE) == 0 && ibv_post_send(qp, &wr, &bad) == 0);
    struct ibv_poll_cq_attr poll = { 0 };
    int begun = ENOENT;
    for (int i = 0; i < 5000 && begun == ENOENT; i++) begun = ibv_start_poll(timed, &poll), usleep(100);
    CHECK(begun == 0);
    if (begun == 0) {
        long age = time(NULL) - (long)(ibv_wc_read_completion_wallclock_ns(timed) / 1000000000);
        CHECK(age >= -1 && age < 10);
        uint64_t first = ibv_wc_read_completion_wallclock_ns(timed);
        for (int i = 0; i < 1000; i++) CHECK(ibv_wc_read_completion_wallclock_ns(timed) == first);
        ibv_end_poll(timed);
    }
    struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE, .moderate = { 4, 100 } };
    CHECK(ibv_modify_cq(ibv_cq_ex_to_cq(timed), &moderate) == 0);
    moderate.attr_mask = 2;
    CHECK(ibv_modify_cq(ibv_cq_ex_to_cq(timed), &moderate) == EINVAL);
    CHECK(ibv_resize_cq(ibv_cq_ex_to_cq(timed), 0) == EINVAL && ibv_resize_cq(ibv_cq_ex_to_cq(timed), 100) == 0 && timed->cqe >= 100);
    CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(timed)) == 0);
}

/* A notification request for any completion stays armed until its event, even if a request for solicited completions
 * follows. */
static void notifications(void)
{
    for (int any = 0; any < 2; any++) {
        struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
        struct ibv_cq *queue = ibv_create_cq(context, 4, NULL, channel, 0);
        CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
        struct ibv_qp_init_attr init = { .send_cq = queue, .recv_cq = queue, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
            .cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1 } };
        struct ibv_qp *qp = ibv_create_qp(pd, &init);
        connect_to(qp, qp->qp_num);
        if (any) CHECK(ibv_req_notify_cq(queue, 0) == 0);
        CHECK(ibv_req_notify_cq(queue, 1) == 0);
        struct ibv_send_wr wr = { .opcode = IBV_WR_RDMA_WRITE }, *bad;
        struct ibv_wc wc;
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
        int polled = 0;
        for (int i = 0; i < 5000000 && polled == 0; i++) polled = ibv_poll_cq(queue, 1, &wc);
        CHECK(polled == 1 && wc.status == IBV_WC_SUCCESS);
        struct ibv_cq *which;
        void *data;
        /* The event may come after the completion that it reports. */
        struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
        CHECK(poll(&readable, 1, any ? 5000 : 100) == any);
        int events = ibv_get_cq_event(channel, &which, &data) == 0;
        CHECK(events == any);
        if (events) ibv_ack_cq_events(queue, 1);
        CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(queue) == 0 && ibv_destroy_comp_channel(channel) == 0);
    }
}

static void addresses(void)
{
    struct ibv_ah_attr attr = { .port_num = 1, .grh.sgid_index = GID_INDEX };
    uint8_t mac[6] = { 0 }, none[6] = { 0 };
    uint16_t vlan = 0;
    CHECK(ibv_query_gid(context, 1, GID_INDEX, &attr.grh.dgid) == 0);
    CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan) == EINVAL);
    attr.is_global = 1;
    CHECK(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan) == 0 && memcmp(mac, none, 6) && vlan == 0xffff);
    union ibv_gid group = { .raw = { [10] = 0xff, 0xff, 239, 1, 2, 3 } };
    CHECK(ibv_attach_mcast(from, &group, 0) == EINVAL);
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .cap = { .max_send_wr = 1, .max_recv_wr = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(ibv_attach_mcast(qp, &attr.grh.dgid, 0) == EINVAL && ibv_detach_mcast(qp, &group, 0) == EINVAL);
    CHECK(ibv_attach_mcast(qp, &group, 0) == 0 && ibv_attach_mcast(qp, &group, 0) == 0 && ibv_detach_mcast(qp, &group, 0) == 0);
    CHECK(ibv_destroy_qp(qp) == 0);
}

/* RESET removes the completions of the QP from the CQ. */
static void resets(void)
{
    struct ibv_recv_wr recv = { .wr_id = 1 }, *bad;
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
    CHECK(ibv_post_recv(to, &recv, &bad) == 0 && ibv_modify_qp(to, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RESET;
    CHECK(ibv_modify_qp(to, &attr, IBV_QP_STATE) == 0);
    struct ibv_wc wc;
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    /* Their entries are free again: the CQ does not overflow although the program does not poll it. */
    const int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    for (int i = 0; i < 100; i++) {
        struct ibv_qp_attr begin = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
        CHECK(ibv_modify_qp(to, &begin, mask) == 0 && ibv_post_recv(to, &recv, &bad) == 0);
        attr.qp_state = IBV_QPS_ERR;
        CHECK(ibv_modify_qp(to, &attr, IBV_QP_STATE) == 0);
        attr.qp_state = IBV_QPS_RESET;
        CHECK(ibv_modify_qp(to, &attr, IBV_QP_STATE) == 0);
    }
    CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    new_pair();
    CHECK(write_to((uintptr_t)bytes, 0, 'x') != IBV_WC_SUCCESS); /* Later completions arrive. */
    new_pair();
    while (ibv_poll_cq(cq, 1, &wc) > 0) {}
}

static struct ibv_qp *new_datagram_qp(void)
{
    struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD,
        .cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1 } };
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    return qp;
}

/* Datagrams that cannot be sent are posted, and complete in error, as with mlx5. */
static void wrong_datagrams(struct ibv_ah *ah)
{
    struct ibv_port_attr port;
    CHECK(ibv_query_port(context, 1, &port) == 0);
    static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
        IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_SEND_WITH_INV, IBV_WR_LOCAL_INV, IBV_WR_SEND };
    for (int i = 0; i < 8; i++) {
        struct ibv_qp *qp = new_datagram_qp();
        uint32_t length = opcodes[i] == IBV_WR_SEND ? (128u << port.active_mtu) + 10 : 8;
        struct ibv_sge sge = { .addr = (uintptr_t)bytes, .length = length, .lkey = local->lkey };
        struct ibv_send_wr wr = { .wr_id = i, .opcode = opcodes[i], .sg_list = &sge, .num_sge = 1, .wr.ud = { ah, qp->qp_num, 7 } }, *bad;
        CHECK(ibv_post_send(qp, &wr, &bad) == 0);
        struct ibv_wc wc = completion();
        CHECK(wc.wr_id == (uint64_t)i && wc.qp_num == qp->qp_num);
        CHECK(wc.status == (opcodes[i] == IBV_WR_SEND ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_QP_OP_ERR));
        CHECK(ibv_destroy_qp(qp) == 0);
    }
}

/* The device creates as many objects as it reports, and no more. */
static void limits(void)
{
    struct ibv_device_attr attr;
    CHECK(ibv_query_device(context, &attr) == 0);
    const int reported[] = { attr.max_cq, attr.max_pd, attr.max_ah, attr.max_srq, attr.max_mr, attr.max_mw, attr.max_qp, attr.max_mcast_grp };
    for (int i = 0; i < 8; i++) CHECK(reported[i] >= 1024 && reported[i] < 1 << 24);
    CHECK(!(attr.device_cap_flags & IBV_DEVICE_SRQ_RESIZE));
    void **made = calloc(attr.max_pd + 1, sizeof *made);
    int count = 0;
    while (count <= attr.max_pd && (made[count] = ibv_alloc_pd(context))) count++;
    CHECK(count == attr.max_pd - 1 && errno == ENOMEM); /* `pd` is one more. */
    while (count > 0) CHECK(ibv_dealloc_pd(made[--count]) == 0);
    while (count <= attr.max_cq && (made[count] = ibv_create_cq(context, 1, NULL, NULL, 0))) count++;
    CHECK(count == attr.max_cq - 1 && errno == ENOMEM);
    while (count > 0) CHECK(ibv_destroy_cq(made[--count]) == 0);
    struct ibv_srq_init_attr init = { .attr = { .max_wr = 1, .max_sge = 1 } };
    while (count <= attr.max_srq && (made[count] = ibv_create_srq(pd, &init))) count++;
    CHECK(count == attr.max_srq && errno == ENOMEM);
    init.attr.max_wr = 2;
    CHECK(ibv_modify_srq(made[0], &init.attr, IBV_SRQ_MAX_WR) == EINVAL);
    while (count > 0) CHECK(ibv_destroy_srq(made[--count]) == 0);
    struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX, .hop_limit = 1 } };
    CHECK(ibv_query_gid(context, 1, GID_INDEX, &path.grh.dgid) == 0);
    struct timespec begin, end;
    clock_gettime(CLOCK_MONOTONIC, &begin);
    while (count <= attr.max_ah && (made[count] = ibv_create_ah(pd, &path))) count++;
    CHECK(count == attr.max_ah && errno == ENOMEM);
    for (int i = 0; i < count; i++) CHECK(ibv_destroy_ah(made[i]) == 0);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("an address handle: %.2f us\n", ((end.tv_sec - begin.tv_sec) * 1e9 + end.tv_nsec - begin.tv_nsec) / 1e3 / count);
    free(made);
}

/* The requests between ibv_wr_start and ibv_wr_complete are posted all or none, whichever of them is wrong. */
static void batches(void)
{
    struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1, .pd = pd,
        .cap = { .max_send_wr = 4, .max_recv_wr = 1, .max_send_sge = 1 },
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND };
    struct ibv_qp *made = ibv_create_qp_ex(context, &init);
    struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(made);
    struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
    CHECK(ibv_modify_qp(made, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY) == 0);
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(made, &attr, IBV_QP_STATE) == 0);
    attr.qp_state = IBV_QPS_RTS;
    CHECK(ibv_modify_qp(made, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN) == 0);
    struct ibv_ah_attr path = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = GID_INDEX, .hop_limit = 1 } };
    CHECK(ibv_query_gid(context, 1, GID_INDEX, &path.grh.dgid) == 0);
    struct ibv_ah *ah = ibv_create_ah(pd, &path);
    CHECK(ah != NULL);
    for (int wrong = 0; wrong < 3; wrong++) {
        ibv_wr_start(qp);
        for (int i = 0; i < 3; i++) {
            qp->wr_id = i;
            ibv_wr_send(qp);
            ibv_wr_set_ud_addr(qp, wrong == 1 && i == 2 ? NULL : ah, made->qp_num, 7);
            struct ibv_sge two[] = { { (uintptr_t)bytes, 4, local->lkey }, { (uintptr_t)bytes, 4, local->lkey } };
            if (wrong == 2 && i == 2) ibv_wr_set_sge_list(qp, 2, two); /* more than max_send_sge */
            else ibv_wr_set_sge(qp, local->lkey, (uintptr_t)bytes, 8);
        }
        CHECK((ibv_wr_complete(qp) == 0) == (wrong == 0));
        struct ibv_wc wc;
        for (int i = 0; wrong == 0 && i < 3; i++) CHECK(completion().status == IBV_WC_SUCCESS);
        CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
    }
    CHECK(ibv_destroy_qp(made) == 0);
    wrong_datagrams(ah);
    CHECK(ibv_destroy_ah(ah) == 0);
}

int main(void)
{
    struct ibv_device **list = ibv_get_device_list(NULL);
    context = list && list[0] ? ibv_open_device(list[0]) : NULL;
    if (!context || !(pd = ibv_alloc_pd(context)) || !(cq = ibv_create_cq(context, 64, NULL, NULL, 0))) return perror("open"), 1;
    ibv_free_device_list(list);
    bytes = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    local = ibv_reg_mr(pd, bytes, PAGE, IBV_ACCESS_LOCAL_WRITE);
    CHECK(local != NULL);
    new_pair();
    windows();
    placement();
    device_memory();
    domains();
    regions();
    dma_buffers();
    xrc();
    clocks();
    notifications();
    addresses();
    resets();
    limits();
    batches();
    CHECK(ibv_destroy_qp(from) == 0 && ibv_destroy_qp(to) == 0 && ibv_dereg_mr(local) == 0);
    CHECK(ibv_destroy_cq(cq) == 0 && ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    printf("%d checks failed\n", failures);
    return failures != 0;
}
