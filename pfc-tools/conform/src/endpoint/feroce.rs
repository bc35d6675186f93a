//! Feroce as an end of a plan.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use feroce_engine::congestion::{CongestionConfig, Control};
use feroce_engine::device::{
    Buffer, CompletionQueue, ConnectOptions, Device, DeviceConfig, Endpoint, OpenError, PortKind,
    ProtectionDomain, QpInit, QueuePair,
};
use feroce_engine::memory::Access;
use feroce_engine::port::pcap::PcapPort;
use feroce_engine::qp::QpState;
use feroce_engine::verbs::{
    Completion, Data, RecvRequest, RemoteAddr, SendFlags, SendOp, SendRequest, Sge,
};
use feroce_wire::{PathMtu, Psn};

use super::end::{End, Pace, Posting, RealPace};
use super::plan::{Family, Op, Place, Region, Settings};
use super::{Failure, failed, model};

/// Addresses and prefix lengths of the interface, for a port that does not use the kernel's.
const ADDRESSES: [(IpAddr, u8); 2] = [
    (IpAddr::V4(Ipv4Addr::new(10, 77, 0, 1)), 24),
    (IpAddr::V6(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 1)), 64),
];

/// The configuration of a device for plans, on a port of kind `port`.
pub fn config(port: PortKind, control: Control) -> DeviceConfig {
    let congestion = CongestionConfig { control, ..CongestionConfig::default() };
    DeviceConfig { port, arena_bytes: 256 << 20, max_qp: 1024, congestion, ..Default::default() }
}

/// Opens `interface`. If there is a `capture`, all frames are written to it in full.
///
/// # Errors
/// See [`OpenError`].
pub fn open(
    interface: &str,
    mut config: DeviceConfig,
    mut capture: Option<File>,
) -> Result<Device, OpenError> {
    let mut name = interface.to_owned();
    if let Some(over_interface) = config.port.entry().and_then(|entry| entry.over_interface) {
        (name, config.ports) = over_interface(0, interface, &ADDRESSES, &config.ports);
    }

    Device::open_wrapped(&name, config, &mut |port| {
        let Some(capture) = capture.take() else { return Ok(port) };
        let captured = PcapPort::new(port, capture, u32::MAX);
        let captured =
            captured.map_err(|source| OpenError::System { action: "begin the capture", source })?;
        Ok(Box::new(captured))
    })
}

/// The objects of one plan on a device. They are destroyed when dropped.
#[derive(Debug)]
pub struct FeroceEnd {
    device: Device,
    pace: Box<dyn Pace>,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    buffers: Vec<Buffer>,
    qp: Option<QueuePair>,
    sgid_index: u32,
}

impl FeroceEnd {
    /// Creates an end on `device`, without memory and QP.
    ///
    /// # Errors
    /// The error of the device.
    pub fn new(device: &Device) -> Result<Self, Failure> {
        Self::paced(device, Box::new(RealPace::start()))
    }

    /// Creates an end on a device that uses the clock `pace`.
    ///
    /// # Errors
    /// The error of the device.
    pub fn paced(device: &Device, pace: Box<dyn Pace>) -> Result<Self, Failure> {
        let cq = device.create_cq(1024).map_err(failed("create a CQ"))?;
        Ok(Self {
            device: device.clone(),
            pace,
            pd: device.alloc_pd(),
            cq,
            buffers: Vec::new(),
            qp: None,
            sgid_index: 0,
        })
    }

    fn sges(&self, place: Place, len: u32) -> Vec<Sge> {
        let region = self.buffers[place.region].region();
        if len == 0 { Vec::new() } else { vec![region.sge(u64::from(place.offset), len)] }
    }

    fn qp(&mut self) -> Result<&mut QueuePair, Failure> {
        self.qp.as_mut().ok_or_else(|| Failure("Feroce has no QP".into()))
    }

    fn post_send(&mut self, request: &Posting) -> Result<(), Failure> {
        let sges = self.sges(request.local, request.len);
        let mut copied = vec![0; if request.inline { request.len as usize } else { 0 }];
        self.buffers[request.local.region].read(request.local.offset as usize, &mut copied);
        let parts = [&copied[..]];
        let data = if request.inline { Data::Inline(&parts) } else { Data::Sges(&sges) };
        let fence = if request.fence { SendFlags::FENCE } else { SendFlags::NONE };
        let (wr_id, op) = (request.wr_id, send_op(request));
        let request = SendRequest { wr_id, op, data, flags: SendFlags::SIGNALED | fence };
        self.qp()?.post_send(&request).map_err(failed("Feroce posts a request"))
    }
}

fn send_op(request: &Posting) -> SendOp {
    let &Posting { remote, operand, swap, .. } = request;
    let immediate = u32::try_from(operand & 0xffff_ffff).expect("masked");
    match request.op {
        Op::Send => SendOp::Send,
        Op::SendImm => SendOp::SendImm(immediate),
        Op::SendInv => SendOp::SendInvalidate(remote.rkey),
        Op::Write => SendOp::Write(remote),
        Op::WriteImm => SendOp::WriteImm(remote, immediate),
        Op::Read => SendOp::Read(remote),
        Op::FetchAdd => SendOp::FetchAdd { remote, add: operand },
        Op::CmpSwap | Op::CmpSwapMiss => SendOp::CompareSwap { remote, compare: operand, swap },
    }
}

impl End for FeroceEnd {
    fn name(&self) -> &'static str {
        "Feroce"
    }

    fn prepare(
        &mut self,
        family: Family,
        regions: &[Region],
        seed: u64,
        settings: &Settings,
    ) -> Result<Endpoint, Failure> {
        for (region, seed) in regions.iter().zip(seed..) {
            let invalidate = if region.window { Access::REMOTE_INVALIDATE } else { Access::NONE };
            let buffer = self.pd.alloc_buffer(region.len as usize, region.access | invalidate);
            let buffer = buffer.map_err(failed("Feroce registers memory"))?;
            buffer.write(0, &model::pattern(seed, region.len as usize));
            self.buffers.push(buffer);
        }
        let gids = self.device.gids();
        let found = gids.iter().find(|(_, entry)| family.covers(entry.gid.ip()));
        self.sgid_index = found.ok_or_else(|| Failure("Feroce has no such GID".into()))?.0;
        let qp = self.pd.create_qp(&QpInit::new(&self.cq));
        let qp = self.qp.insert(qp.map_err(failed("Feroce creates a QP"))?);
        qp.endpoint(settings.psn, self.sgid_index).map_err(failed("Feroce's address"))
    }

    fn connect(
        &mut self,
        peer: &Endpoint,
        rq_psn: Psn,
        mtu: PathMtu,
        settings: &Settings,
    ) -> Result<(), Failure> {
        let options = ConnectOptions {
            sgid_index: self.sgid_index,
            path_mtu: Some(mtu),
            access: settings.access,
            timeout: settings.timeout,
            retry_cnt: settings.retry_cnt,
            rnr_retry: settings.rnr_retry,
            min_rnr_timer: settings.min_rnr_timer,
            max_rd_atomic: Some(settings.depth),
            ..ConnectOptions::default()
        };
        let peer = Endpoint { psn: rq_psn, ..*peer };
        let connected = self.qp()?.connect(settings.psn, &peer, &options);
        connected.map_err(failed("Feroce connects"))
    }

    fn keys(&mut self) -> Result<Vec<RemoteAddr>, Failure> {
        let regions = self.buffers.iter().map(Buffer::region);
        Ok(regions.map(|region| RemoteAddr { addr: region.addr(), rkey: region.rkey() }).collect())
    }

    fn post_receives(&mut self, receives: &[(u64, Place, u32)]) -> Result<(), Failure> {
        for &(wr_id, place, len) in receives {
            let sges = self.sges(place, len);
            let posted = self.qp()?.post_recv(&RecvRequest { wr_id, sges: &sges });
            posted.map_err(failed("Feroce posts a receive"))?;
        }
        Ok(())
    }

    fn post_sends(&mut self, requests: &[Posting]) -> Result<(), Failure> {
        requests.iter().try_for_each(|request| self.post_send(request))
    }

    fn completions(&mut self, count: usize, timeout: Duration) -> Result<Vec<Completion>, Failure> {
        let end = self.pace.now() + timeout;
        let mut completions = Vec::new();
        loop {
            let missing = count - completions.len();
            let found = self.cq.poll(&mut completions, missing);
            let left = end.saturating_sub(self.pace.now());
            if completions.len() == count || left.is_zero() {
                return Ok(completions);
            }
            if found == 0 {
                self.pace.pass(left);
            }
        }
    }

    fn memory(&mut self, region: usize) -> Result<Vec<u8>, Failure> {
        let buffer = &self.buffers[region];
        let mut bytes = vec![0; buffer.len()];
        buffer.read(0, &mut bytes);
        Ok(bytes)
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), Failure> {
        self.buffers[place.region].write(place.offset as usize, bytes);
        Ok(())
    }

    fn state(&mut self) -> Result<QpState, Failure> {
        let state = self.qp()?.query().state;
        state.ok_or_else(|| Failure("a QP of Feroce has no state".into()))
    }

    fn destroy_qp(&mut self) -> Result<(), Failure> {
        self.qp = None;
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failure> {
        Err(Failure("Feroce is this process".into()))
    }
}
