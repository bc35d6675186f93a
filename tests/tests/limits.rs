//! Limits on the number of objects, and the paths that address handles share.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;

use feroce_engine::device::{
    Addressing, Device, DeviceConfig, DeviceError, MAX_GROUPS, Path, QpInit, SrqInit,
};
use feroce_engine::memory::arena::Arena;
use feroce_engine::net::{Gid, GidEntry, PathHeaders, ResolveError};
use feroce_engine::port::kind::LinkAddresses;
use feroce_engine::port::shm::{ShmConfig, shm_pair};
use feroce_engine::qp::Service;
use feroce_engine::time::{Duration, Instant};
use feroce_tests::{MACS, Rig, gid, manual_config, new_rig};
use feroce_wire::MacAddr;

fn rig(change: impl FnOnce(&mut DeviceConfig)) -> Rig {
    let mut config = manual_config(1);
    change(&mut config);
    new_rig(&config, Duration::from_micros(1))
}

fn is_exhausted<T>(result: Result<T, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Exhausted(_)))
}

#[test]
fn a_device_has_no_more_objects_than_it_reports() {
    let rig = rig(|config| (config.max_cq, config.max_srq, config.max_ah) = (3, 2, 4));
    let device = &rig.devices[0];
    let limits = device.attributes();
    assert_eq!((limits.max_cq, limits.max_srq, limits.max_ah), (3, 2, 4));
    let pd = device.alloc_pd();

    let mut cqs: Vec<_> = (0..3).map(|_| device.create_cq(8).unwrap()).collect();
    assert!(is_exhausted(device.create_cq(8)));
    assert!(is_exhausted(device.create_cq_waking(8, Waker::noop().clone())));
    let handle = cqs[2].clone();
    cqs.pop();
    assert!(is_exhausted(device.create_cq(8)), "a handle is left");
    drop(handle);
    cqs.push(device.create_cq(8).unwrap());

    let mut srqs: Vec<_> = (0..2).map(|_| pd.create_srq(&SrqInit::default()).unwrap()).collect();
    assert!(is_exhausted(pd.create_srq(&SrqInit::default())));
    srqs.pop();
    let domain = device.open_xrcd();
    let xrc = pd.create_xrc_srq(&SrqInit::default(), &domain, &cqs[0]).unwrap();
    assert!(is_exhausted(pd.create_srq(&SrqInit::default())));
    drop(xrc);
    srqs.push(pd.create_srq(&SrqInit::default()).unwrap());
    // An object that cannot be made does not count.
    srqs.pop();
    assert!(pd.create_srq(&SrqInit { max_wr: 0, max_sge: 1 }).is_err());
    srqs.push(pd.create_srq(&SrqInit::default()).unwrap());

    let ah = || pd.create_ah(&Path::new(gid(1), 0));
    let mut handles: Vec<_> = (0..4).map(|_| ah().unwrap()).collect();
    assert!(is_exhausted(ah()));
    handles.pop();
    assert!(pd.create_ah(&Path::new(gid(1), 77)).is_err());
    handles.push(ah().unwrap());
    assert!(is_exhausted(ah()));
}

#[test]
fn multicast_groups_are_limited() {
    let rig = rig(|_| {});
    let device = &rig.devices[0];
    let cq = device.create_cq(8).unwrap();
    let init = QpInit { service: Service::Ud, ..QpInit::new(&cq) };
    let qp = device.alloc_pd().create_qp(&init).unwrap();
    let group = |number: usize| {
        let [.., a, b] = number.to_be_bytes();
        Gid::from(std::net::Ipv4Addr::new(239, 1, a, b))
    };
    (0..MAX_GROUPS).for_each(|number| qp.attach_multicast(group(number)).unwrap());
    qp.attach_multicast(group(0)).unwrap();
    assert!(is_exhausted(qp.attach_multicast(group(MAX_GROUPS))));
    qp.detach_multicast(group(7)).unwrap();
    qp.attach_multicast(group(MAX_GROUPS)).unwrap();
}

/// A CQ with a waker uses no descriptor, so that the limit of CQs is not that of descriptors.
#[test]
fn a_queue_with_a_waker_has_no_descriptor() {
    let rig = rig(|_| {});
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = open();
    let make = |_| rig.devices[0].create_cq_waking(8, Waker::noop().clone()).unwrap();
    let cqs: Vec<_> = (0..1000).map(make).collect();
    // Other tests of this process open and close descriptors at the same time.
    assert!(open() < before + 500, "{} CQs", cqs.len());
}

/// Addresses of a port that counts how often a path is looked up.
#[derive(Debug)]
struct CountedAddresses {
    lookups: AtomicU32,
    mtu: AtomicU32,
    answers: AtomicBool,
    closed: Mutex<bool>,
    close: Condvar,
}

impl LinkAddresses for CountedAddresses {
    fn gids(&self) -> Vec<GidEntry> {
        let interface_name = String::new();
        vec![GidEntry { gid: gid(0), vlan: None, interface: 0, interface_name }]
    }

    fn resolve(
        &self,
        destination: Gid,
        source: &GidEntry,
        _timeout: Duration,
    ) -> Result<PathHeaders, ResolveError> {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let (src_ip, dst_ip) = (source.gid.ip(), destination.ip());
        if !self.answers.load(Ordering::Relaxed) {
            return Err(ResolveError::Unresolved { next_hop: dst_ip, after: Duration::ZERO });
        }
        Ok(PathHeaders {
            dst_mac: MACS[1],
            src_mac: MACS[0],
            vlan: None,
            src_ip,
            dst_ip,
            hop_limit: 64,
            mtu: self.mtu.load(Ordering::Relaxed),
            interface: 0,
            next_hop: Some(dst_ip),
        })
    }

    fn resolve_own(&self, to: Gid, from: &GidEntry) -> Result<PathHeaders, ResolveError> {
        self.resolve(to, from, Duration::ZERO)
    }

    fn neighbour(&self, _vlan: Option<u16>, _ip: std::net::IpAddr) -> Option<MacAddr> {
        None
    }

    fn request(&self, _source: &GidEntry, _next_hop: std::net::IpAddr) {}

    fn wait_for_move(&self, _seen: u64, _timeout: Duration) -> Option<u64> {
        let is_open = |closed: &mut bool| !*closed;
        drop(self.close.wait_while(self.closed.lock().unwrap(), is_open).unwrap());
        None
    }

    fn close(&self) {
        *self.closed.lock().unwrap() = true;
        self.close.notify_all();
    }
}

fn counted() -> (Device, Arc<CountedAddresses>) {
    let addresses = Arc::new(CountedAddresses {
        lookups: AtomicU32::new(0),
        mtu: AtomicU32::new(4200),
        answers: AtomicBool::new(true),
        closed: Mutex::new(false),
        close: Condvar::new(),
    });
    let arena = Arena::new(16 << 20).unwrap();
    let (port, _other) = shm_pair(&arena, ShmConfig::default()).unwrap();
    let addressing = Addressing::Port(Arc::clone(&addresses) as Arc<dyn LinkAddresses>);
    let device = Device::with_ports(vec![Box::new(port)], addressing, manual_config(1)).unwrap();
    (device, addresses)
}

/// The first handle to a peer looks the path up, twice because of changes in between. Later handles
/// use the known path for 30 s, even after the last handle is dropped.
#[test]
fn handles_to_one_peer_share_its_path() {
    let (device, addresses) = counted();
    let pd = device.alloc_pd();
    let lookups = || addresses.lookups.load(Ordering::Relaxed);
    let ah = |pd: &feroce_engine::device::ProtectionDomain| pd.create_ah(&Path::new(gid(1), 0));
    let first = ah(&pd).unwrap();
    assert_eq!((lookups(), first.max_datagram()), (2, 4096));
    for _ in 0..1000 {
        let again = ah(&device.alloc_pd()).unwrap();
        assert_eq!(again.ethernet(), first.ethernet());
    }
    drop(first);
    let other = Path { traffic_class: 8, ..Path::new(gid(1), 0) };
    pd.create_ah(&other).unwrap();
    assert_eq!(lookups(), 2);
    pd.create_ah(&Path::new(gid(2), 0)).unwrap();
    assert_eq!(lookups(), 4, "another peer");

    device.turn(Instant::ZERO + Duration::from_secs(29));
    addresses.mtu.store(1500, Ordering::Relaxed);
    assert_eq!((ah(&pd).unwrap().max_datagram(), lookups()), (4096, 4));
    device.turn(Instant::ZERO + Duration::from_secs(30));
    assert_eq!((ah(&pd).unwrap().max_datagram(), lookups()), (1024, 6));
    device.turn(Instant::ZERO + Duration::from_secs(61));
    addresses.answers.store(false, Ordering::Relaxed);
    assert!(matches!(ah(&pd), Err(DeviceError::Path { .. })));
}

/// Unused paths do not accumulate: the oldest of many are looked up again.
#[test]
fn unused_paths_are_forgotten() {
    let (device, addresses) = counted();
    let pd = device.alloc_pd();
    let peer = |number: usize| {
        let [.., a, b] = number.to_be_bytes();
        Path::new(Gid::from(std::net::Ipv4Addr::new(10, 9, a, b)), 0)
    };
    let used = pd.create_ah(&peer(0)).unwrap();
    for number in 1..2000 {
        pd.create_ah(&peer(number)).unwrap();
    }
    let before = addresses.lookups.load(Ordering::Relaxed);
    pd.create_ah(&peer(1)).unwrap();
    assert_eq!(addresses.lookups.load(Ordering::Relaxed), before + 2, "forgotten");
    pd.create_ah(&peer(0)).unwrap();
    assert_eq!(addresses.lookups.load(Ordering::Relaxed), before + 2, "in use");
    drop(used);
}
