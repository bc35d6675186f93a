//! The helper of a core and a thread that polls, on one port.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use feroce_engine::device::{Device, DeviceConfig, Driver, Path};
use feroce_engine::memory::arena::Arena;
use feroce_engine::port::shm::{ShmConfig, ShmPort, shm_pair};
use feroce_engine::port::{Port, PortAttributes, PortStats, Priority, RxFrame};
use feroce_engine::verbs::SendOp;
use feroce_tests::datagram::DatagramQp;
use feroce_tests::{addresses, gid, manual_config};
use feroce_wire::Qpn;

/// A port that shows one frame per burst and keeps the others that it has taken, as a socket does
/// that returns many packets at once. It has no descriptor, so that only other threads wake its
/// core.
#[derive(Debug)]
struct OneByOne {
    inner: ShmPort,
    taken: usize,
    shown: usize,
}

impl Port for OneByOne {
    fn attributes(&self) -> &PortAttributes {
        self.inner.attributes()
    }

    fn stats(&self) -> PortStats {
        self.inner.stats()
    }

    fn rx_burst(&mut self) -> usize {
        if self.shown == self.taken {
            (self.taken, self.shown) = (self.inner.rx_burst(), 0);
        }
        let count = usize::from(self.shown < self.taken);
        self.shown += count;
        count
    }

    fn rx_frame(&self, _: usize) -> RxFrame<'_> {
        self.inner.rx_frame(self.shown - 1)
    }

    fn tx_room(&mut self) -> usize {
        self.inner.tx_room()
    }

    fn tx_slot(&mut self) -> Option<&mut [u8]> {
        self.inner.tx_slot()
    }

    fn tx_commit(&mut self, len: usize, priority: Priority) {
        self.inner.tx_commit(len, priority);
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }

    fn is_unfinished(&self) -> bool {
        self.shown < self.taken
    }

    fn arm_wakeup(&mut self, _: &mut Vec<RawFd>) -> bool {
        !self.is_unfinished()
    }

    fn disarm_wakeup(&mut self) {}
}

/// A thread that polls once takes frames from the port. The helper, which sleeps, handles those
/// that the thread has left in the port.
#[test]
fn a_sleeping_helper_is_woken_for_frames_that_another_thread_has_left() {
    const DATAGRAMS: usize = 4;
    let arena = Arena::new(16 << 20).unwrap();
    let (near, inner) = shm_pair(&arena, ShmConfig::default()).unwrap();
    let far = OneByOne { inner, taken: 0, shown: 0 };
    let config = DeviceConfig { driver: Driver::Helper, seed: None, ..manual_config(0) };
    let device = |port: Box<dyn Port>, end| {
        Device::with_ports(vec![port], addresses(end), config.clone()).unwrap()
    };
    let devices = [device(Box::new(near), 0), device(Box::new(far), 1)];
    let pds = devices.each_ref().map(Device::alloc_pd);
    let [mut near, mut far] = [0, 1].map(|end| DatagramQp::new(&devices[end], &pds[end], |_| {}));
    far.receive(DATAGRAMS);
    let ah = pds[0].create_ah(&Path::new(gid(1), 0)).unwrap();
    std::thread::sleep(Duration::from_millis(300)); // The helpers sleep.
    // The first one is dropped, so that handling it leaves no QP with something to do.
    for to in [Qpn::MULTICAST].into_iter().chain([far.qp.qpn(); DATAGRAMS]) {
        near.send(SendOp::Send, b"datagram", &ah, to).unwrap();
    }
    wait_for(1 + DATAGRAMS, || near.cq.poll_one().is_some());
    assert!(far.cq.poll_one().is_none());
    wait_for(DATAGRAMS, || far.cq.pop().is_some());
}

/// Waits until `next` has returned true `count` times.
fn wait_for(count: usize, mut next: impl FnMut() -> bool) {
    let (start, mut seen) = (Instant::now(), 0);
    while seen < count {
        seen += usize::from(next());
        assert!(start.elapsed() < Duration::from_secs(20), "{seen} of {count}");
        std::thread::yield_now();
    }
}
