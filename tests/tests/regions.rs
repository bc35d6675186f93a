//! Memory registration beyond plain regions: reregistration, chosen addresses, device memory,
//! on-demand and null regions, advice.

#![allow(unsafe_code)] // Registering memory needs a promise by the program.

use feroce_engine::device::{Advice, DeviceError, MemoryRegion, Reregistration};
use feroce_engine::memory::{Access, AccessError};
use feroce_engine::verbs::{RecvRequest, RemoteAddr, SendFlags, SendOp, Sge, Status};
use feroce_tests::pair::Pair;
use feroce_wire::Key;

const OK: Status = Status::Success;
const RW: Access = Access::ALL;

/// Returns leaked pages, so they stay valid for every registration.
fn pages(count: usize) -> (*mut u8, usize) {
    let len = count * 4096;
    let bytes = Box::leak(vec![0u8; len + 4096].into_boxed_slice());
    let skip = bytes.as_ptr().addr().wrapping_neg() % 4096;
    (bytes[skip..].as_mut_ptr(), len)
}

fn byte_at(start: *mut u8, offset: usize) -> u8 {
    // SAFETY: inside pages that the test leaked; no transfer is in progress.
    unsafe { start.add(offset).read_volatile() }
}

/// Writes eight bytes of `value` from end 0 to `addr` with `rkey`; returns the completion status.
fn write(pair: &mut Pair, addr: u64, rkey: Key, value: u8) -> Status {
    pair.buffers[0].write(0, &[value; 8]);
    pair.post(9, SendOp::Write(RemoteAddr { addr, rkey }), 8);
    pair.run(20);
    pair.done(0)[0].1
}

#[test]
fn a_region_may_have_a_chosen_address_or_be_zero_based() {
    let mut pair = Pair::default();
    let (start, len) = pages(1);
    // SAFETY: leaked pages.
    let chosen = unsafe { pair.pds[1].reg_mr_iova(start, len, 0xdead_0000, RW) }.unwrap();
    assert_eq!(chosen.addr(), 0xdead_0000);
    assert_eq!(write(&mut pair, 0xdead_0010, chosen.rkey(), 1), OK);
    assert_eq!(byte_at(start, 16), 1);
    // SAFETY: leaked pages.
    let zero = unsafe { pair.pds[1].reg_mr(start, len, RW | Access::ZERO_BASED) }.unwrap();
    assert_eq!((zero.addr(), zero.len()), (0, 4096));
    // `verbs.h` turns `ibv_reg_mr` into a registration whose IOVA is the memory's own address.
    let iova = start.addr() as u64;
    // SAFETY: leaked pages.
    let by_macro =
        unsafe { pair.pds[1].reg_mr_iova(start, len, iova, RW | Access::ZERO_BASED) }.unwrap();
    assert_eq!(by_macro.addr(), 0);
    assert_eq!(write(&mut pair, 8, by_macro.rkey(), 5), OK);
    assert_eq!(byte_at(start, 8), 5);
    assert_eq!(write(&mut pair, 4088, zero.rkey(), 2), OK);
    assert_eq!((byte_at(start, 4087), byte_at(start, 4095)), (0, 2));
    assert_eq!(write(&mut pair, 4089, zero.rkey(), 3), Status::RemoteAccess);
}

#[test]
fn reregistration_changes_memory_rights_and_domain() {
    let mut pair = Pair::default();
    let (first, len) = pages(1);
    let (second, _) = pages(1);
    // SAFETY: leaked pages.
    let mut region = unsafe { pair.pds[1].reg_mr_iova(first, len, 0x1000, RW) }.unwrap();
    let old = region.rkey();
    assert_eq!(write(&mut pair, 0x1000, old, 1), OK);
    let change = Reregistration { translation: Some((second, len, 0x2000)), ..Default::default() };
    // SAFETY: leaked pages.
    unsafe { region.reregister(&change) }.unwrap();
    // Another key index: the old one with another variant would be guessed in 128 tries.
    assert!(region.rkey().index() != old.index() && region.addr() == 0x2000);
    assert_eq!(region.lkey(), region.rkey());
    // SAFETY: leaked pages.
    let next = unsafe { pair.pds[1].reg_mr(first, len, RW) }.unwrap();
    assert_ne!(next.rkey().index(), old.index(), "the freed index is used last");
    assert_eq!(write(&mut pair, 0x2000, region.rkey(), 2), OK);
    assert_eq!((byte_at(first, 0), byte_at(second, 0)), (1, 2));
    // Changes rights and protection domain only; the memory stays.
    let other = pair.rig.devices[1].alloc_pd();
    let change = Reregistration {
        pd: Some(&other),
        access: Some(Access::REMOTE_READ),
        ..Default::default()
    };
    let key = region.rkey();
    // SAFETY: leaked pages.
    unsafe { region.reregister(&change) }.unwrap();
    assert_eq!((region.addr(), region.access()), (0x2000, Access::REMOTE_READ));
    assert_eq!(region.rkey(), key, "the memory is the same");
    assert_eq!(write(&mut pair, 0x2000, region.rkey(), 3), Status::RemoteAccess);
    // A refused reregistration changes nothing.
    let key = region.rkey();
    let change = Reregistration { access: Some(Access::REMOTE_WRITE), ..Default::default() };
    // SAFETY: leaked pages.
    let refused = unsafe { region.reregister(&change) };
    assert!(matches!(refused, Err(DeviceError::Region(_))));
    let elsewhere = pair.rig.devices[0].alloc_pd();
    let change = Reregistration { pd: Some(&elsewhere), ..Default::default() };
    // SAFETY: leaked pages.
    assert!(matches!(unsafe { region.reregister(&change) }, Err(DeviceError::Foreign(_))));
    assert_eq!((region.rkey(), region.access()), (key, Access::REMOTE_READ));
    assert_eq!(byte_at(second, 0), 2);
}

#[test]
fn device_memory_can_be_copied_and_registered() {
    let mut pair = Pair::default();
    let memory = pair.rig.devices[1].alloc_dm(8192, 64).unwrap();
    assert!(memory.address().is_multiple_of(64));
    let region = pair.pds[1].reg_dm_mr(&memory, 4096, 4096, RW).unwrap();
    assert_eq!((region.addr(), memory.users()), (0, 1));
    memory.write(4096, &[5; 16]);
    assert_eq!(write(&mut pair, 4, region.rkey(), 7), OK);
    let mut bytes = [0; 16];
    memory.read(4096, &mut bytes);
    assert_eq!(bytes, [5, 5, 5, 5, 7, 7, 7, 7, 7, 7, 7, 7, 5, 5, 5, 5]);
    // The region keeps the device memory allocated.
    drop(memory);
    assert_eq!(write(&mut pair, 4088, region.rkey(), 8), OK);
    let memory = pair.rig.devices[1].alloc_dm(64, 1).unwrap();
    assert!(matches!(pair.pds[1].reg_dm_mr(&memory, 1, 64, RW), Err(DeviceError::Region(_))));
    let refused = pair.rig.devices[1].alloc_dm((1 << 20) + 1, 1);
    assert!(matches!(refused, Err(DeviceError::Limit { limit: 0x10_0000, .. })));
}

/// A null region discards the data written to it and reads as zeros.
#[test]
fn a_null_region_discards_writes_and_reads_as_zeros() {
    let mut pair = Pair::default();
    let null = [0, 1].map(|end| pair.pds[end].alloc_null_mr().unwrap());
    let half = |region: &MemoryRegion, addr| Sge { addr, length: 300, lkey: region.lkey() };
    let kept = pair.buffers[1].region().sge(0, 300);
    let sges = [half(&null[1], 0x1234_5678_9abc), kept];
    pair.qps[1].post_recv(&RecvRequest { wr_id: 1, sges: &sges }).unwrap();
    pair.buffers[0].write(0, &[6; 300]);
    let sges = [half(&null[0], 77), pair.buffers[0].region().sge(0, 300)];
    pair.post_sges(2, SendOp::Send, &sges, SendFlags::SIGNALED);
    pair.run(20);
    assert_eq!((pair.done(0), pair.done(1)), (vec![(2, OK)], vec![(1, OK)]));
    let mut bytes = [0; 301];
    pair.buffers[1].read(0, &mut bytes);
    assert!(bytes[..300].iter().all(|&byte| byte == 6) && bytes[300] == 0);
    let target = pair.remote(0);
    let sges = [half(&null[0], 0)];
    pair.post_sges(3, SendOp::Write(target), &sges, SendFlags::SIGNALED);
    pair.run(20);
    pair.buffers[1].read(0, &mut bytes);
    assert!(bytes.iter().all(|&byte| byte == 0), "zeros were written");
    assert_eq!(pair.done(0), [(3, OK)]);
}

/// Peers use the key of a null region as they use any other, as perftest does with mlx5's.
#[test]
fn peers_use_a_null_region() {
    let mut pair = Pair::default();
    let null = pair.pds[1].alloc_null_mr().unwrap();
    for addr in [0, 0x1234_5678_9abc, u64::MAX - 8] {
        assert_eq!(write(&mut pair, addr, null.lkey(), 1), OK, "{addr:#x}");
    }
    assert_eq!(write(&mut pair, u64::MAX - 6, null.lkey(), 1), Status::RemoteAccess, "its end");
    let mut pair = Pair::default();
    let null = pair.pds[1].alloc_null_mr().unwrap();
    let remote = |addr| RemoteAddr { addr, rkey: null.lkey() };
    for op in [
        SendOp::Read(remote(0x5001)),
        SendOp::FetchAdd { remote: remote(0x5000), add: 7 },
        SendOp::CompareSwap { remote: remote(0), compare: 0, swap: 9 },
        SendOp::FetchAdd { remote: remote(0), add: 7 },
    ] {
        pair.buffers[0].write(0, &[3; 8]);
        pair.post(1, op, 8);
        pair.run(20);
        let mut bytes = [1; 8];
        pair.buffers[0].read(0, &mut bytes);
        assert_eq!((pair.done(0), bytes), (vec![(1, OK)], [0; 8]), "{op:?}");
    }
    pair.post(2, SendOp::AtomicWrite(remote(8)), 8);
    pair.run(20);
    assert_eq!(pair.done(0), [(2, OK)]);
    let other = pair.rig.devices[1].alloc_pd().alloc_null_mr().unwrap();
    assert_eq!(write(&mut pair, 0, other.lkey(), 1), Status::RemoteAccess, "another domain");
}

/// A region without bytes has a key that serves messages without bytes.
#[test]
fn a_region_may_be_empty() {
    let mut pair = Pair::default();
    let (start, _) = pages(1);
    // SAFETY: leaked pages.
    let empty = unsafe { pair.pds[1].reg_mr(start, 0, RW) }.unwrap();
    assert_eq!((empty.len(), empty.is_empty()), (0, true));
    let remote = RemoteAddr { addr: empty.addr(), rkey: empty.rkey() };
    for op in [SendOp::Write(remote), SendOp::Read(remote)] {
        pair.post(1, op, 0);
        pair.run(20);
        assert_eq!(pair.done(0), [(1, OK)], "{op:?}");
    }
    assert_eq!(write(&mut pair, empty.addr(), empty.rkey(), 1), Status::RemoteAccess);
}

/// A region that is zero-based stays so when it is registered again.
#[test]
fn a_zero_based_region_stays_zero_based() {
    let mut pair = Pair::default();
    let (first, len) = pages(1);
    let (second, _) = pages(1);
    // SAFETY: leaked pages.
    let mut region = unsafe { pair.pds[1].reg_mr(first, len, RW | Access::ZERO_BASED) }.unwrap();
    let translation = Some((second, len, second.addr() as u64));
    let change = Reregistration { translation, ..Default::default() };
    // SAFETY: leaked pages.
    unsafe { region.reregister(&change) }.unwrap();
    assert_eq!(region.addr(), 0);
    assert_eq!(write(&mut pair, 16, region.rkey(), 4), OK);
    assert_eq!((byte_at(first, 16), byte_at(second, 16)), (0, 4));
    // ZERO_BASED can be removed and added without a change of the memory.
    for (access, addr) in [(RW, second.addr() as u64), (RW | Access::ZERO_BASED, 0)] {
        let change = Reregistration { access: Some(access), ..Default::default() };
        // SAFETY: leaked pages.
        unsafe { region.reregister(&change) }.unwrap();
        assert_eq!(region.addr(), addr);
        assert_eq!(write(&mut pair, addr + 16, region.rkey(), 5), OK);
    }
}

/// Access to unmapped pages fails without a crash; after they are mapped it works.
#[test]
fn on_demand_regions_survive_unmapped_pages() {
    let mut pair = Pair::default();
    let len = 2 * 4096;
    let map = |at: *mut libc::c_void, fixed| {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
        // SAFETY: anonymous pages, at an address chosen by the kernel or over pages of this test.
        unsafe { libc::mmap(at, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) }
    };
    let start = map(std::ptr::null_mut(), 0);
    assert_ne!(start, libc::MAP_FAILED);
    let access = RW | Access::ON_DEMAND;
    // SAFETY: an on-demand region makes no promise about its pages, and there are no references to
    // them.
    let region = unsafe { pair.pds[1].reg_mr(start.cast(), len, access) }.unwrap();
    let (addr, rkey) = (region.addr(), region.rkey());
    assert_eq!(write(&mut pair, addr + 4092, rkey, 1), OK, "across pages");
    assert_eq!((byte_at(start.cast(), 4092), byte_at(start.cast(), 4099)), (1, 1));
    let add = SendOp::FetchAdd { remote: RemoteAddr { addr, rkey }, add: 5 };
    pair.post(1, add, 8);
    pair.run(20);
    assert_eq!((pair.done(0), byte_at(start.cast(), 0)), (vec![(1, OK)], 5));
    let sge = region.sge(0, 8192);
    pair.pds[1].advise(Advice::PrefetchWrite, &[sge]).unwrap();
    // SAFETY: pages of this test without references to them.
    assert_eq!(unsafe { libc::munmap(start, len) }, 0);
    let unmapped = pair.pds[1].advise(Advice::Prefetch, &[sge]);
    assert!(matches!(unmapped, Err(DeviceError::Access(AccessError::Unmapped))));
    pair.pds[1].advise(Advice::PrefetchNoFault, &[sge]).unwrap();
    assert_eq!(write(&mut pair, addr, rkey, 2), Status::RemoteAccess);
    let mut pair = Pair::default();
    // SAFETY: an on-demand region over the whole address space, as above.
    let all = unsafe { pair.pds[1].reg_mr(std::ptr::null_mut(), usize::MAX, access) }.unwrap();
    let word = Box::leak(Box::new(0u64));
    let at = std::ptr::from_mut(word).expose_provenance() as u64;
    assert_eq!(write(&mut pair, at, all.rkey(), 3), OK);
    // SAFETY: leaked memory; no transfer is in progress.
    assert_eq!(unsafe { std::ptr::from_mut(word).read_volatile() }, 0x0303_0303_0303_0303);
    assert_eq!(
        write(&mut pair, 0x10, all.rkey(), 3),
        Status::RemoteAccess,
        "nothing is mapped there"
    );
}

#[test]
fn advice_checks_key_bounds_and_rights() {
    let pair = Pair::default();
    let pd = &pair.pds[1];
    let read_only = pd.alloc_buffer(64, Access::NONE).unwrap();
    let sge = read_only.region().sge(0, 64);
    assert!(pd.advise(Advice::Prefetch, &[sge, sge]).is_ok());
    let cases = [
        (Advice::PrefetchWrite, sge, AccessError::Rights),
        (Advice::Prefetch, Sge { lkey: Key(3), ..sge }, AccessError::Key),
        (Advice::PrefetchNoFault, read_only.region().sge(1, 64), AccessError::Bounds),
    ];
    for (advice, sge, expected) in cases {
        let refused = pd.advise(advice, &[sge]);
        assert!(matches!(refused, Err(DeviceError::Access(e)) if e == expected), "{advice:?}");
    }
    let other = pair.rig.devices[1].alloc_pd();
    assert!(other.advise(Advice::Prefetch, &[sge]).is_err());
}

#[test]
fn invalid_access_rights_are_refused() {
    let pair = Pair::default();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC, Access::FLUSH_PERSISTENT] {
        let refused = pair.pds[1].alloc_buffer(64, access);
        assert!(matches!(refused, Err(DeviceError::Region(_))), "{access:?}");
    }
}
