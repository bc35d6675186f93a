//! Follows the neighbours that a port resolves itself: when a neighbour's Ethernet address changes,
//! the headers of the QPs that use it are updated.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use super::follow::{lock, refresh};
use super::{DeviceInner, OpenError, Opened};
use crate::port::kind::LinkAddresses;
use crate::time::Duration;
use crate::verbs::AsyncEvent;

/// Interval of requests to the neighbours in use, to find out that one has moved; the same as in
/// Linux.
const REQUEST_INTERVAL: Duration = Duration::from_secs(30);

/// The thread that follows; dropping this ends it.
#[derive(Debug)]
pub(super) struct LanFollower {
    addresses: Arc<dyn LinkAddresses>,
    thread: Option<JoinHandle<()>>,
}

impl LanFollower {
    pub(super) fn start(
        device: &Opened,
        addresses: &Arc<dyn LinkAddresses>,
    ) -> Result<Self, OpenError> {
        let (device, port) = (Arc::downgrade(&device.0), Arc::clone(addresses));
        let thread = feroce_threads::spawn("feroce-lan", move || run(&device, &*port)).map_err(
            |source| OpenError::System {
                action: "start the thread that follows neighbours",
                source,
            },
        )?;
        Ok(Self { addresses: Arc::clone(addresses), thread: Some(thread) })
    }
}

impl Drop for LanFollower {
    fn drop(&mut self) {
        self.addresses.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // A thread that panicked has printed its message already.
        }
    }
}

fn run(device: &Weak<DeviceInner>, addresses: &dyn LinkAddresses) {
    let (mut seen, mut gids) = (0, addresses.gids());
    while let Some(moves) = addresses.wait_for_move(seen, REQUEST_INTERVAL) {
        let Some(device) = device.upgrade() else { return };
        if moves == seen {
            request_neighbours(&device, addresses);
        } else {
            seen = moves;
            device.host_changes.fetch_add(1, Ordering::Release);
            follow(&device, addresses);
            let now = addresses.gids();
            if std::mem::replace(&mut gids, now.clone()) != now {
                device.events.push(AsyncEvent::GidChange);
            }
        }
    }
    if addresses.is_gone()
        && let Some(device) = device.upgrade()
    {
        device.lose();
    }
}

/// Sends a request to every next hop in use. The port receives the replies.
fn request_neighbours(device: &DeviceInner, addresses: &dyn LinkAddresses) {
    let mut hops: Vec<_> = lock(device)
        .values()
        .filter_map(|path| Some((path.headers.next_hop?, path.source.clone())))
        .collect();
    hops.sort_unstable_by_key(|(hop, source)| (*hop, source.vlan));
    hops.dedup_by_key(|(hop, source)| (*hop, source.vlan));
    for (hop, source) in hops {
        addresses.request(&source, hop);
    }
}

fn follow(device: &DeviceInner, addresses: &dyn LinkAddresses) {
    for (user, path) in lock(device).iter_mut() {
        let Some(hop) = path.headers.next_hop else { continue };
        let mac = addresses.neighbour(path.source.vlan, hop);
        if let Some(mac) = mac.filter(|mac| *mac != path.headers.dst_mac) {
            path.headers.dst_mac = mac;
            refresh(device, user, path);
        }
    }
}
