//! Functions that rdma-core got after release 44: `ibv_reg_mr_ex`, DMA handles, buffers, the port's
//! speed and completion counters. Without root, each test prints a message and passes.
// Every block is a call as a C program makes it; pointers are live, or wrong on purpose.
#![allow(clippy::undocumented_unsafe_blocks)]

mod interface;

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use feroce_verbs_abi as abi;
use feroce_verbs_abi::{ibv_context, ibv_mr, ibv_pd, ibv_qp, ibv_send_wr};
use interface::{Fixture, errno, fixture, ops, set_errno, verbs, zeroed};

unsafe extern "C" {
    fn ibv_reg_mr_ex(pd: *mut ibv_pd, attr: *mut abi::ibv_mr_init_attr) -> *mut ibv_mr;
    fn ibv_alloc_dmah(
        context: *mut ibv_context,
        attr: *mut abi::ibv_dmah_init_attr,
    ) -> *mut abi::ibv_dmah;
    fn ibv_dealloc_dmah(dmah: *mut abi::ibv_dmah) -> c_int;
    fn ibv_alloc_buf(pd: *mut ibv_pd, size: usize, buf: *mut *mut abi::ibv_buf) -> *mut c_void;
    fn ibv_free_buf(buf: *mut abi::ibv_buf);
    fn ibv_reg_buf_mr(
        pd: *mut ibv_pd,
        buf: *mut abi::ibv_buf,
        addr: *mut c_void,
        length: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    fn ibv_export_buf_dmabuf_fd(buf: *mut abi::ibv_buf) -> c_int;
    fn ibv_dm_export_dmabuf_fd(dm: *mut abi::ibv_dm) -> c_int;
    fn ibv_query_port_speed(context: *mut ibv_context, port: u32, speed: *mut u64) -> c_int;
    fn _ibv_query_comp_cntr_caps(
        context: *mut ibv_context,
        caps: *mut abi::ibv_comp_cntr_caps,
        size: usize,
    ) -> c_int;
    fn ibv_create_comp_cntr(
        context: *mut ibv_context,
        attr: *mut abi::ibv_comp_cntr_init_attr,
    ) -> *mut abi::ibv_comp_cntr;
    fn ibv_destroy_comp_cntr(counter: *mut abi::ibv_comp_cntr) -> c_int;
    fn ibv_set_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: u64) -> c_int;
    fn ibv_inc_err_comp_cntr(counter: *mut abi::ibv_comp_cntr, amount: u64) -> c_int;
    fn ibv_read_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_read_err_comp_cntr(counter: *mut abi::ibv_comp_cntr, value: *mut u64) -> c_int;
    fn ibv_qp_attach_comp_cntr(
        qp: *mut ibv_qp,
        counter: *mut abi::ibv_comp_cntr,
        attr: *mut abi::ibv_qp_attach_comp_cntr_attr,
    ) -> c_int;
}

/// Checks that the call returned null and set `errno` to `code`.
fn fails<T>(code: c_int, call: impl FnOnce() -> *mut T) {
    set_errno(0);
    assert!(call().is_null());
    assert_eq!(errno(), code);
}

fn mr_attr(fixture: &Fixture) -> abi::ibv_mr_init_attr {
    let mut attr: abi::ibv_mr_init_attr = zeroed();
    attr.comp_mask = abi::IBV_REG_MR_MASK_ADDR;
    (attr.addr, attr.length, attr.access) = (fixture.memory, 4096, 1);
    attr
}

#[test]
fn regions_are_registered_by_address_and_by_buffer() {
    let Some(fixture) = fixture() else { return };
    unsafe {
        let mut attr = mr_attr(fixture);
        let mr = ibv_reg_mr_ex(fixture.pd, &mut attr);
        assert_eq!(((*mr).addr, (*mr).length), (fixture.memory, 4096));
        assert_eq!(verbs::ibv_dereg_mr(mr), 0);
        for (mask, code) in [
            (0, libc::EINVAL),
            (abi::IBV_REG_MR_MASK_ADDR | abi::IBV_REG_MR_MASK_FD, libc::EINVAL),
            (abi::IBV_REG_MR_MASK_ADDR | abi::IBV_REG_MR_MASK_FD_OFFSET, libc::EINVAL),
            (abi::IBV_REG_MR_MASK_FD | abi::IBV_REG_MR_MASK_IOVA, libc::EINVAL),
            (abi::IBV_REG_MR_MASK_FD | abi::IBV_REG_MR_MASK_FD_OFFSET, libc::EINVAL),
            (abi::IBV_REG_MR_MASK_ADDR | 1 << 6, libc::EOPNOTSUPP),
        ] {
            attr.comp_mask = mask;
            fails(code, || ibv_reg_mr_ex(fixture.pd, &mut attr));
        }
        let mut buf = null_mut();
        let start = ibv_alloc_buf(fixture.pd, 8192, &mut buf);
        assert!(!start.is_null());
        start.cast::<u8>().write_bytes(7, 8192);
        let mr = ibv_reg_buf_mr(fixture.pd, buf, start.byte_add(4096), 4096, 1);
        assert_eq!((*mr).addr, start.byte_add(4096));
        fails(libc::EINVAL, || ibv_reg_buf_mr(fixture.pd, buf, start, 8193, 1));
        fails(libc::EINVAL, || ibv_reg_buf_mr(fixture.pd, buf, start.byte_sub(1), 8, 1));
        let other = verbs::ibv_alloc_pd(fixture.context);
        fails(libc::EINVAL, || ibv_reg_buf_mr(other, buf, start, 4096, 1));
        assert_eq!(verbs::ibv_dealloc_pd(other), 0);
        assert_eq!((ibv_export_buf_dmabuf_fd(buf), errno()), (-1, libc::ENODATA));
        ibv_free_buf(buf);
        start.byte_add(4096).cast::<u8>().write(8); // the region keeps the memory
        assert_eq!(verbs::ibv_dereg_mr(mr), 0);
        ibv_free_buf(buf); // refused
        fails(libc::EINVAL, || ibv_alloc_buf(fixture.pd, 0, &mut buf));
    }
}

#[test]
fn a_dma_buffer_over_a_memfd_is_registered_by_reg_mr_ex() {
    let Some(fixture) = fixture() else { return };
    unsafe {
        let memfd = libc::memfd_create(c"buffer".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert!(memfd >= 0 && libc::ftruncate(memfd, 8192) == 0);
        assert_eq!(libc::fcntl(memfd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK), 0);
        let mut attr: abi::ibv_mr_init_attr = zeroed();
        attr.comp_mask =
            abi::IBV_REG_MR_MASK_FD | abi::IBV_REG_MR_MASK_FD_OFFSET | abi::IBV_REG_MR_MASK_IOVA;
        (attr.fd, attr.fd_offset, attr.length, attr.access) = (memfd, 4096, 4096, 1);
        fails(libc::EINVAL, || ibv_reg_mr_ex(fixture.pd, &mut attr)); // a memfd itself is none
        let device = libc::open(c"/dev/udmabuf".as_ptr(), libc::O_RDWR);
        if device < 0 {
            return feroce_test_skip::skip("the kernel has no /dev/udmabuf");
        }
        /// `struct udmabuf_create`: memfd, flags, offset, size.
        #[repr(C)]
        struct Create(u32, u32, u64, u64);
        let create = Create(memfd.cast_unsigned(), 1, 0, 8192);
        const UDMABUF_CREATE: libc::c_ulong = 0x4018_7542;
        attr.fd = libc::ioctl(device, UDMABUF_CREATE, &raw const create);
        assert!(attr.fd >= 0, "errno {}", errno());
        let mr = ibv_reg_mr_ex(fixture.pd, &mut attr);
        assert!(!mr.is_null(), "errno {}", errno());
        assert_eq!(((*mr).addr.addr(), (*mr).length), (4096, 4096));
        assert_eq!(verbs::ibv_dereg_mr(mr), 0);
        for fd in [attr.fd, memfd, device] {
            libc::close(fd);
        }
    }
}

#[test]
fn dma_handles_are_hints() {
    let Some(fixture) = fixture() else { return };
    unsafe {
        let mut attr: abi::ibv_dmah_init_attr = zeroed();
        let set = |attr: &mut abi::ibv_dmah_init_attr, mask, cpu, hint, kind| {
            (attr.comp_mask, attr.cpu_id, attr.ph, attr.tph_mem_type) = (mask, cpu, hint, kind);
        };
        for (mask, cpu, hint, kind, code) in [
            (1, 1 << 20, 0, 0, libc::EINVAL),
            (2, 0, 4, 0, libc::EINVAL),
            (4, 0, 0, 2, libc::EINVAL),
            (8, 0, 0, 0, libc::EOPNOTSUPP),
        ] {
            set(&mut attr, mask, cpu, hint, kind);
            fails(code, || ibv_alloc_dmah(fixture.context, &mut attr));
        }
        set(&mut attr, 6, 0, 3, 1);
        let dmah = ibv_alloc_dmah(fixture.context, &mut attr);
        assert_eq!((*dmah).context, fixture.context);
        let mut attr = mr_attr(fixture);
        attr.comp_mask |= abi::IBV_REG_MR_MASK_DMAH;
        attr.dmah = dmah;
        let access = attr.access;
        attr.access |= abi::IBV_ACCESS_ON_DEMAND.cast_signed();
        fails(libc::EOPNOTSUPP, || ibv_reg_mr_ex(fixture.pd, &mut attr));
        attr.access = access;
        let mr = ibv_reg_mr_ex(fixture.pd, &mut attr);
        assert!(!mr.is_null());
        assert_eq!((ibv_dealloc_dmah(dmah), errno()), (libc::EBUSY, libc::EBUSY));
        assert_eq!(verbs::ibv_dereg_mr(mr), 0);
        assert_eq!(ibv_dealloc_dmah(dmah), 0);
        fails(libc::EINVAL, || ibv_reg_mr_ex(fixture.pd, &mut attr));
    }
}

#[test]
fn the_speed_of_the_port_is_in_units_of_100_megabits() {
    let Some(fixture) = fixture() else { return };
    unsafe {
        let (mut speed, mut attr): (u64, abi::ibv_port_attr) = (0, zeroed());
        assert_eq!(ibv_query_port_speed(fixture.context, 1, &mut speed), 0);
        assert_eq!(verbs::ibv_query_port(fixture.context, 1, &mut attr), 0);
        assert_eq!(speed, 100, "a veth interface has 10 Gb/s");
        assert_eq!((ibv_query_port_speed(fixture.context, 2, &mut speed), errno()), (22, 22));
        let mut init: abi::ibv_alloc_dm_attr = zeroed();
        init.length = 64;
        let dm = ops(fixture.context).alloc_dm.unwrap()(fixture.context, &mut init);
        assert_eq!((ibv_dm_export_dmabuf_fd(dm), errno()), (-1, libc::EOPNOTSUPP));
        assert_eq!(ops(fixture.context).free_dm.unwrap()(dm), 0);
    }
}

fn modify(qp: *mut ibv_qp, attr: &mut abi::ibv_qp_attr, mask: u32) {
    let code = unsafe { verbs::ibv_modify_qp(qp, attr, mask.cast_signed()) };
    assert_eq!(code, 0);
}

/// Connects the QP to itself.
fn connect(fixture: &Fixture, qp: *mut ibv_qp) {
    let mut attr: abi::ibv_qp_attr = zeroed();
    (attr.qp_state, attr.port_num, attr.qp_access_flags) = (1, 1, 7);
    let init =
        abi::IBV_QP_STATE | abi::IBV_QP_PORT | abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_ACCESS_FLAGS;
    modify(qp, &mut attr, init);
    (attr.qp_state, attr.path_mtu, attr.min_rnr_timer) = (2, 3, 12);
    (attr.dest_qp_num, attr.max_dest_rd_atomic) = (unsafe { (*qp).qp_num }, 4);
    attr.ah_attr = fixture.ah_attr();
    let ready = abi::IBV_QP_STATE
        | abi::IBV_QP_AV
        | abi::IBV_QP_PATH_MTU
        | abi::IBV_QP_DEST_QPN
        | abi::IBV_QP_RQ_PSN
        | abi::IBV_QP_MAX_DEST_RD_ATOMIC
        | abi::IBV_QP_MIN_RNR_TIMER;
    modify(qp, &mut attr, ready);
    (attr.qp_state, attr.timeout, attr.retry_cnt, attr.max_rd_atomic) = (3, 14, 7, 4);
    let send = abi::IBV_QP_STATE
        | abi::IBV_QP_TIMEOUT
        | abi::IBV_QP_RETRY_CNT
        | abi::IBV_QP_RNR_RETRY
        | abi::IBV_QP_SQ_PSN
        | abi::IBV_QP_MAX_QP_RD_ATOMIC;
    modify(qp, &mut attr, send);
}

fn counter(fixture: &Fixture, kind: u32) -> *mut abi::ibv_comp_cntr {
    let mut attr: abi::ibv_comp_cntr_init_attr = zeroed();
    attr.r#type = kind;
    unsafe { ibv_create_comp_cntr(fixture.context, &mut attr) }
}

/// Returns the completion count and the error count.
fn values(counter: *mut abi::ibv_comp_cntr) -> (u64, u64) {
    let mut values = (0, 0);
    unsafe {
        assert_eq!(ibv_read_comp_cntr(counter, &mut values.0), 0);
        assert_eq!(ibv_read_err_comp_cntr(counter, &mut values.1), 0);
    }
    values
}

/// Posts a WRITE or READ of `length` bytes from the first page to the second.
fn post(fixture: &Fixture, qp: *mut ibv_qp, mr: *mut ibv_mr, opcode: u32, rkey: u32) {
    unsafe {
        let mut sge =
            abi::ibv_sge { addr: fixture.memory.addr() as u64, length: 64, lkey: (*mr).lkey };
        let mut wr: ibv_send_wr = zeroed();
        (wr.sg_list, wr.num_sge, wr.opcode) = (&mut sge, 1, opcode);
        wr.wr.rdma = abi::send_wr_rdma { remote_addr: fixture.memory.addr() as u64 + 4096, rkey };
        let mut bad = null_mut();
        assert_eq!((*fixture.context).ops.post_send.unwrap()(qp, &mut wr, &mut bad), 0);
    }
}

/// Polls until `test` holds.
#[allow(clippy::disallowed_methods)] // the test waits for real packets
fn until(fixture: &Fixture, test: impl Fn() -> bool) {
    let start = Instant::now();
    while !test() {
        let mut wc = zeroed();
        unsafe { (*fixture.context).ops.poll_cq.unwrap()(fixture.cq, 1, &mut wc) };
        assert!(start.elapsed() < Duration::from_secs(10), "the counters never got there");
    }
}

#[test]
fn counters_count_completions_that_no_queue_gets() {
    let Some(fixture) = fixture() else { return };
    unsafe {
        let mut caps: abi::ibv_comp_cntr_caps = zeroed();
        assert_eq!(_ibv_query_comp_cntr_caps(fixture.context, &mut caps, 16), 0);
        assert_eq!(caps.supported_qp_attach_ops, 0b1_0111);
        let (writes, bytes) = (counter(fixture, 0), counter(fixture, 1));
        let mut init: abi::ibv_qp_init_attr = zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (fixture.cq, fixture.cq, abi::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_recv_wr, init.cap.max_send_sge) = (8, 8, 1);
        let qp = verbs::ibv_create_qp(fixture.pd, &mut init);
        let mut attach: abi::ibv_qp_attach_comp_cntr_attr = zeroed();
        for (mask, code) in [(0, libc::EINVAL), (1 << 3, libc::ENOTSUP), (1 << 4, 0)] {
            attach.op_mask = mask;
            assert_eq!(ibv_qp_attach_comp_cntr(qp, writes, &mut attach), code);
        }
        attach.op_mask = 1 << 4 | 1 << 2;
        assert_eq!(ibv_qp_attach_comp_cntr(qp, bytes, &mut attach), libc::EBUSY);
        attach.op_mask = 1 << 2;
        assert_eq!(ibv_qp_attach_comp_cntr(qp, bytes, &mut attach), 0);
        let mr = verbs::ibv_reg_mr(fixture.pd, fixture.memory, 8192, 7);
        connect(fixture, qp);
        attach.op_mask = 1;
        assert_eq!(ibv_qp_attach_comp_cntr(qp, writes, &mut attach), libc::EINVAL, "beyond INIT");
        assert_eq!(ibv_set_comp_cntr(writes, 10), 0);
        for opcode in [abi::IBV_WR_RDMA_WRITE, abi::IBV_WR_RDMA_WRITE, abi::IBV_WR_RDMA_READ] {
            post(fixture, qp, mr, opcode, (*mr).rkey);
        }
        until(fixture, || values(writes) == (12, 0) && values(bytes) == (64, 0));
        assert_eq!(ibv_inc_err_comp_cntr(writes, 5), 0);
        post(fixture, qp, mr, abi::IBV_WR_RDMA_WRITE, (*mr).rkey ^ 1);
        until(fixture, || values(writes) == (12, 6));
        assert_eq!((ibv_destroy_comp_cntr(writes), errno()), (libc::EBUSY, libc::EBUSY));
        assert_eq!(verbs::ibv_destroy_qp(qp), 0);
        assert_eq!((ibv_destroy_comp_cntr(writes), ibv_destroy_comp_cntr(bytes)), (0, 0));
        assert_eq!(ibv_destroy_comp_cntr(writes), libc::ENOENT);
        assert_eq!(verbs::ibv_dereg_mr(mr), 0);
        fails(libc::ENOTSUP, || counter(fixture, 2));
    }
}
