//! UD QPs on both devices of a rig, in virtual time.

use std::collections::VecDeque;

use feroce_engine::counters::Counter;
use feroce_engine::device::{
    AddressHandle, Buffer, CompletionQueue, Destination, Device, DeviceConfig, Path, PostError,
    ProtectionDomain, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::net::Gid;
use feroce_engine::qp::Service;
use feroce_engine::time::Duration;
use feroce_engine::verbs::{
    Completion, Data, GRH_LEN, RecvRequest, SendFlags, SendOp, SendRequest,
};
use feroce_wire::{Psn, Qkey, Qpn};

use crate::wire::Seen;
use crate::{Rig, drain, manual_config, new_rig};

/// Q_Key of every QP that [`Datagrams::qp`] creates.
pub const QKEY: Qkey = Qkey(0x1122_3344);

/// Length of one receive in bytes: a GRH and the longest payload.
pub const RECEIVE: u32 = 4096 + 40;

/// Two devices on which tests create UD QPs.
#[derive(Debug)]
pub struct Datagrams {
    /// Devices, wire, clock.
    pub rig: Rig,
    /// One protection domain per device.
    pub pds: [ProtectionDomain; 2],
}

impl Default for Datagrams {
    fn default() -> Self {
        Self::with(&manual_config(1))
    }
}

impl Datagrams {
    /// Creates two devices with `config`; the wire is recorded.
    pub fn with(config: &DeviceConfig) -> Self {
        let mut rig = new_rig(config, Duration::from_micros(1));
        rig.wire.set_record(true);
        let pds = [0, 1].map(|end| rig.devices[end].alloc_pd());
        Self { rig, pds }
    }

    /// Creates a UD QP on end `end`, in RTS, with a first PSN of 100.
    ///
    /// # Panics
    /// If the device refuses.
    pub fn qp(&self, end: usize) -> DatagramQp {
        self.qp_with(end, |_| {})
    }

    /// Like [`Datagrams::qp`], with attributes changed by `change`.
    ///
    /// # Panics
    /// If the device refuses.
    pub fn qp_with(&self, end: usize, change: impl FnOnce(&mut QpInit<'_>)) -> DatagramQp {
        DatagramQp::new(&self.rig.devices[end], &self.pds[end], change)
    }

    /// Creates an address handle on end `end` for `gid`, from GID `sgid_index`.
    ///
    /// # Panics
    /// If there is no path to `gid`.
    pub fn ah(&self, end: usize, gid: Gid, sgid_index: u32) -> AddressHandle {
        self.pds[end].create_ah(&Path::new(gid, sgid_index)).expect("a path")
    }

    /// Runs for 10 us.
    pub fn run(&mut self) {
        self.rig.run_for(Duration::from_micros(10));
    }

    /// Returns the frames sent since the last call.
    pub fn frames(&mut self) -> Vec<Seen> {
        self.rig.wire.take_record()
    }

    /// Returns the value of a counter of end `end`.
    pub fn count(&self, end: usize, counter: Counter) -> u64 {
        self.rig.devices[end].counter(counter)
    }
}

/// A UD QP with its own CQ and buffer. Sends use the lower half of the buffer, receives the upper
/// half.
#[derive(Debug)]
pub struct DatagramQp {
    /// The QP.
    pub qp: QueuePair,
    /// CQ for sends and receives.
    pub cq: CompletionQueue,
    /// Buffer for sends and receives.
    pub buffer: Buffer,
    posted: VecDeque<u64>,
    next: u64,
}

/// Number of receives that fit in the upper half of the buffer.
const PLACES: u64 = 16;

impl DatagramQp {
    /// Creates a UD QP on `device`, in RTS, with a first PSN of 100.
    ///
    /// # Panics
    /// If the device refuses.
    pub fn new(
        device: &Device,
        pd: &ProtectionDomain,
        change: impl FnOnce(&mut QpInit<'_>),
    ) -> Self {
        let cq = device.create_cq(256).expect("a CQ");
        let mut init = QpInit { service: Service::Ud, max_recv_sge: 2, ..QpInit::new(&cq) };
        change(&mut init);
        let mut qp = pd.create_qp(&init).expect("a QP");
        qp.activate(QKEY, Psn::new(100)).expect("in RESET");
        Self::of(qp, cq, pd)
    }

    /// Wraps `qp`, whose completions go to `cq`.
    ///
    /// # Panics
    /// If there is no memory for its buffer.
    pub fn of(qp: QueuePair, cq: CompletionQueue, pd: &ProtectionDomain) -> Self {
        let len = usize::try_from(2 * PLACES * u64::from(RECEIVE)).expect("small");
        let buffer = pd.alloc_buffer(len, Access::ALL).expect("a buffer");
        Self { qp, cq, buffer, posted: VecDeque::new(), next: 0 }
    }

    /// Posts `count` receives of [`RECEIVE`] bytes.
    ///
    /// # Panics
    /// If the receive queue is full.
    pub fn receive(&mut self, count: usize) {
        for _ in 0..count {
            let at = (PLACES + self.next % PLACES) * u64::from(RECEIVE);
            let sges = [self.buffer.region().sge(at, RECEIVE)];
            self.qp.post_recv(&RecvRequest { wr_id: self.next, sges: &sges }).expect("room");
            self.posted.push_back(at);
            self.next += 1;
        }
    }

    /// Posts a signaled datagram with `payload` to the QP `remote` through `ah`.
    ///
    /// # Errors
    /// The error of the post.
    pub fn send(
        &mut self,
        op: SendOp,
        payload: &[u8],
        ah: &AddressHandle,
        remote: Qpn,
    ) -> Result<(), PostError> {
        self.send_with_key(op, payload, ah, remote, QKEY)
    }

    /// Like [`DatagramQp::send`], with another Q_Key.
    ///
    /// # Errors
    /// The error of the post.
    pub fn send_with_key(
        &mut self,
        op: SendOp,
        payload: &[u8],
        ah: &AddressHandle,
        remote_qpn: Qpn,
        qkey: Qkey,
    ) -> Result<(), PostError> {
        self.buffer.write(0, payload);
        let len = u32::try_from(payload.len()).expect("short");
        let sges = [self.buffer.region().sge(0, len)];
        let (data, flags) = (Data::Sges(&sges), SendFlags::SIGNALED);
        let request = SendRequest { wr_id: 1000, op, data, flags };
        self.qp.post_send_to(&request, &Destination { ah, remote_qpn, qkey })
    }

    /// Returns the new completions.
    pub fn done(&self) -> Vec<Completion> {
        drain(&self.cq)
    }

    /// Returns the GRH and the payload of the oldest receive that was not read yet.
    ///
    /// # Panics
    /// If none was posted.
    pub fn received(&mut self, done: &Completion) -> (Vec<u8>, Vec<u8>) {
        let at = self.posted.pop_front().expect("posted");
        let mut bytes = vec![0; done.byte_len as usize];
        self.buffer.read(usize::try_from(at).expect("small"), &mut bytes);
        let payload = bytes.split_off(GRH_LEN);
        (bytes, payload)
    }
}
