//! Conversions between C structures and the engine's types that several objects need.

use feroce_engine::device::Path;
use feroce_engine::device::settings::Settings;
use feroce_engine::net::Gid;
use feroce_engine::verbs::{SendFlags, Sge};
use feroce_wire::Key;
use std::ffi::c_int;
use std::slice;

use crate::abi::{IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, ibv_ah_attr, ibv_sge};

/// Returns the bytes of a GID, which C stores as two big-endian halves.
pub fn gid_from_halves(halves: [u64; 2]) -> Gid {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&halves[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&halves[1].to_ne_bytes());
    Gid(bytes)
}

/// Returns a GID as C stores it: two halves in memory order.
pub fn gid_to_halves(gid: [u8; 16]) -> [u64; 2] {
    let (one, two) = gid.split_at(8);
    let half = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    [half(one), half(two)]
}

/// Returns the path to the peer. Values that the program leaves at 0 come from the host's settings.
///
/// # Errors
/// EINVAL without a GRH, which RoCE requires, or for another port than 1.
pub fn path_of(attr: &ibv_ah_attr, settings: &Settings) -> Result<Path, c_int> {
    if attr.is_global == 0 || attr.port_num != 1 {
        return Err(libc::EINVAL);
    }
    let mut path = Path::new(gid_from_halves(attr.grh.dgid), u32::from(attr.grh.sgid_index));
    path.traffic_class = match attr.grh.traffic_class {
        0 => settings.traffic_class,
        class => class,
    };
    // For a multicast group, 0 means link-local, as for sockets.
    path.hop_limit = match (attr.grh.hop_limit, path.dgid.multicast_group()) {
        (0, None) => settings.hop_limit,
        (limit, _) => limit,
    };
    path.source_port = settings.source_port;
    path.flow_label = attr.grh.flow_label;
    path.service_level = attr.sl & 7;
    Ok(path)
}

/// Returns the engine's flags. Other flags have no meaning for a connected QP.
pub fn send_flags(bits: u32) -> SendFlags {
    let table = [
        (IBV_SEND_FENCE, SendFlags::FENCE),
        (IBV_SEND_SIGNALED, SendFlags::SIGNALED),
        (IBV_SEND_SOLICITED, SendFlags::SOLICITED),
    ];
    let mut flags = SendFlags::NONE;
    for (bit, flag) in table {
        if bits & bit != 0 {
            flags |= flag;
        }
    }
    flags
}

/// Returns the engine's scatter/gather entry.
pub fn sge_of(sge: &ibv_sge) -> Sge {
    Sge { addr: sge.addr, length: sge.length, lkey: Key(sge.lkey) }
}

/// Returns bytes of the program.
///
/// # Safety
/// If `len` is not 0, `from` points to `len` bytes that stay readable while the result is used.
pub unsafe fn bytes_at<'a>(from: *const u8, len: usize) -> &'a [u8] {
    match len {
        0 => &[],
        // SAFETY: `from` points to `len` readable bytes.
        _ => unsafe { slice::from_raw_parts(from, len) },
    }
}

/// Copies as much of `from` as fits in the program's structure and zeros the rest.
///
/// # Safety
/// `to` points to `size` writable bytes.
pub unsafe fn fill<T>(to: *mut T, from: &T, size: usize) {
    let known = size.min(size_of::<T>());
    // SAFETY: `to` has `size` writable bytes, and `from` has at least `known` bytes.
    unsafe {
        to.cast::<u8>().write_bytes(0, size);
        to.cast::<u8>().copy_from_nonoverlapping(std::ptr::from_ref(from).cast(), known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_replace_values_that_are_0() {
        let mut settings = Settings::default();
        (settings.hop_limit, settings.traffic_class) = (7, 106);
        let chosen = |dgid: &str, hop_limit: u8, traffic_class: u8| {
            // SAFETY: all-zero bytes are a valid value of this C structure.
            let mut attr: ibv_ah_attr = unsafe { std::mem::zeroed() };
            (attr.is_global, attr.port_num) = (1, 1);
            (attr.grh.hop_limit, attr.grh.traffic_class) = (hop_limit, traffic_class);
            attr.grh.dgid = gid_to_halves(dgid.parse::<Gid>().unwrap().0);
            let path = path_of(&attr, &settings).unwrap();
            (path.hop_limit, path.traffic_class)
        };
        assert_eq!(chosen("::ffff:10.0.0.2", 0, 0), (7, 106));
        assert_eq!(chosen("::ffff:10.0.0.2", 1, 4), (1, 4));
        assert_eq!(chosen("ff0e::ffff:224.1.2.3", 0, 0), (0, 106), "a group: the link only");
    }
}
