//! Scatter and gather: maps message offsets to scatter/gather entries, and entries to registered
//! memory.

use feroce_wire::Payload;

use crate::memory::work_ring::Sge;
use crate::memory::{Access, AccessError, Memory, PdId};

/// Total length of `sges` in bytes.
#[inline]
pub fn total(sges: &[Sge]) -> u64 {
    if let [sge] = sges {
        return u64::from(sge.length);
    }
    sges.iter().map(|sge| u64::from(sge.length)).sum()
}

/// Checks key, protection domain, `rights` and bounds of every entry that is not empty.
///
/// # Errors
/// The first check that fails, of the first entry that has one.
#[inline(always)] // Once per request.
pub fn check(
    memory: Memory<'_>,
    pd: PdId,
    sges: &[Sge],
    rights: Access,
) -> Result<(), AccessError> {
    match sges {
        [sge] => check_one(memory, pd, sge, rights),
        _ => check_all(memory, pd, sges, rights),
    }
}

#[inline(always)] // As `check`.
fn check_one(memory: Memory<'_>, pd: PdId, sge: &Sge, rights: Access) -> Result<(), AccessError> {
    if sge.length == 0 {
        return Ok(());
    }
    memory.check(sge.lkey, pd, rights, Some((sge.addr, u64::from(sge.length))))
}

#[inline(never)]
fn check_all(
    memory: Memory<'_>,
    pd: PdId,
    sges: &[Sge],
    rights: Access,
) -> Result<(), AccessError> {
    sges.iter().try_for_each(|sge| check_one(memory, pd, sge, rights))
}

/// Calls `each(entry, address, start in the range, length)` for each part of an entry that holds
/// bytes of the message in the range `offset .. offset + len`.
fn for_range(
    sges: &[Sge],
    mut offset: u64,
    len: usize,
    mut each: impl FnMut(&Sge, u64, usize, usize) -> Result<(), AccessError>,
) -> Result<(), AccessError> {
    let mut done = 0;
    for sge in sges {
        if done == len {
            break;
        }
        let length = u64::from(sge.length);
        if offset >= length {
            offset -= length;
            continue;
        }
        let here = usize::try_from(length - offset).unwrap_or(usize::MAX).min(len - done);
        let addr = sge.addr.checked_add(offset).ok_or(AccessError::Bounds)?;
        each(sge, addr, done, here)?;
        done += here;
        offset = 0;
    }
    if done == len { Ok(()) } else { Err(AccessError::Bounds) }
}

/// Bytes of the entry that follow the `len` bytes at `addr`.
fn remaining(sge: &Sge, addr: u64, len: usize) -> usize {
    let before = addr.wrapping_sub(sge.addr).wrapping_add(len as u64);
    usize::try_from(u64::from(sge.length).saturating_sub(before)).expect("32 bits fit")
}

/// If the message has one entry, which holds the range `offset .. offset + len`: the entry, the
/// address of the range, and the bytes of the entry after it. Most messages have one entry.
#[inline]
fn in_one_entry(sges: &[Sge], offset: u64, len: usize) -> Option<(&Sge, u64, usize)> {
    let [sge] = sges else { return None };
    let end = offset.checked_add(len as u64)?;
    let after = u64::from(sge.length).checked_sub(end)?;
    Some((sge, sge.addr.checked_add(offset)?, usize::try_from(after).expect("32 bits fit")))
}

/// Copies the bytes of the message from `offset` on to `out`, which they fill.
///
/// # Errors
/// The [`AccessError`] of the entry that failed; the content of `out` is unspecified then.
#[inline(always)] // Once per packet.
pub fn gather(
    memory: Memory<'_>,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    out: &mut [u8],
) -> Result<(), AccessError> {
    match in_one_entry(sges, offset, out.len()) {
        Some((sge, addr, after)) => memory.load(sge.lkey, pd, Access::NONE, addr, out, after),
        None => gather_parts(memory, pd, sges, offset, out),
    }
}

#[inline(never)]
fn gather_parts(
    memory: Memory<'_>,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    out: &mut [u8],
) -> Result<(), AccessError> {
    for_range(sges, offset, out.len(), |sge, addr, start, here| {
        let out = &mut out[start..start + here];
        memory.load(sge.lkey, pd, Access::NONE, addr, out, remaining(sge, addr, here))
    })
}

/// Stores `payload` as the bytes of the message from `offset` on.
///
/// # Errors
/// The [`AccessError`] of the entry that failed; the entries before it are written then.
#[inline(always)] // Once per packet.
pub fn scatter(
    memory: Memory<'_>,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    payload: Payload<'_>,
) -> Result<(), AccessError> {
    let need = Access::LOCAL_WRITE;
    match in_one_entry(sges, offset, payload.len()) {
        Some((sge, addr, after)) => memory.store(sge.lkey, pd, need, addr, payload, after),
        None => scatter_parts(memory, pd, sges, offset, payload),
    }
}

#[inline(never)]
fn scatter_parts(
    memory: Memory<'_>,
    pd: PdId,
    sges: &[Sge],
    offset: u64,
    payload: Payload<'_>,
) -> Result<(), AccessError> {
    for_range(sges, offset, payload.len(), |sge, addr, start, here| {
        let part = payload.split_at(start).1.split_at(here).0;
        memory.store(sge.lkey, pd, Access::LOCAL_WRITE, addr, part, remaining(sge, addr, here))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Recent, leaked_table};
    use feroce_wire::Key;

    const PD: PdId = PdId(3);

    fn entry(addr: u64, length: u32, lkey: Key) -> Sge {
        Sge { addr, length, lkey }
    }

    #[test]
    fn ranges_cross_entries_and_skip_empty_ones() {
        let (table, key) = leaked_table(100, PD, Access::ALL);
        let recent = Recent::default();
        let memory = Memory::new(&table, &recent);
        let numbers: Vec<u8> = (0..100).collect();
        let all = Payload { first: &numbers, second: &[] };
        memory.store(key, PD, Access::LOCAL_WRITE, 0, all, 0).unwrap();
        let sges = [
            entry(10, 5, key),
            entry(0, 0, Key::from_parts(9, 9)), // empty: its key does not matter
            entry(50, 3, key),
            entry(90, 10, key),
        ];
        assert_eq!(total(&sges), 18);
        assert_eq!(check(memory, PD, &sges, Access::LOCAL_WRITE), Ok(()));
        let mut out = [0; 9];
        gather(memory, PD, &sges, 3, &mut out).unwrap();
        assert_eq!(out, [13, 14, 50, 51, 52, 90, 91, 92, 93]);
        let payload = Payload { first: &[1, 2, 3], second: &[4, 5, 6] };
        scatter(memory, PD, &sges, 4, payload).unwrap();
        let mut all = [0; 18];
        gather(memory, PD, &sges, 0, &mut all).unwrap();
        assert_eq!(all[..12], [10, 11, 12, 13, 1, 2, 3, 4, 5, 6, 92, 93]);
        assert_eq!(gather(memory, PD, &sges, 10, &mut out), Err(AccessError::Bounds));
        assert_eq!(gather(memory, PD, &sges, 18, &mut []), Ok(()));
    }
}
