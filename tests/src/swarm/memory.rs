//! The registered memory of both ends, and the contents that the model expects.

use feroce_engine::device::{Buffer, Device, ProtectionDomain};
use feroce_wire::Key;

use super::check::Check;
use super::layout::{Area, Range, TOP_ADDRESS};
use super::random::Random;

/// Memory of both ends. See the [module](self).
#[derive(Debug)]
pub struct Memory {
    /// `None`: not registered on this rig, or deregistered.
    buffers: [Vec<Option<Buffer>>; 2],
    /// First address and key; kept after the region is deregistered.
    names: [Vec<(u64, Key)>; 2],
    /// Expected contents.
    shadow: [Vec<Vec<u8>>; 2],
    _foreign: [ProtectionDomain; 2],
}

impl Memory {
    /// Registers all regions and fills them with `contents`.
    pub fn new(
        devices: &[Device; 2],
        pds: &[ProtectionDomain; 2],
        contents: &[Vec<Vec<u8>>; 2],
        plain_keys: bool,
    ) -> Self {
        let foreign = [0, 1].map(|end: usize| devices[end].alloc_pd());
        let buffers = [0, 1].map(|end: usize| {
            let buffer = |area: Area| {
                let pd = if area == Area::Foreign { &foreign[end] } else { &pds[end] };
                let buffer = match area {
                    Area::Top if plain_keys => top_buffer(pd),
                    Area::Top => return None,
                    _ => pd.alloc_buffer(area.len(), area.access()).expect("a region"),
                };
                buffer.write(0, &contents[end][area.index()]);
                Some(buffer)
            };
            Area::ALL.map(buffer).into_iter().collect::<Vec<_>>()
        });
        let names = [0, 1].map(|end: usize| {
            let name = |buffer: &Option<Buffer>| match buffer {
                Some(buffer) => (buffer.region().addr(), buffer.region().rkey()),
                None => (0, Key::default()),
            };
            buffers[end].iter().map(name).collect()
        });
        Self { buffers, names, shadow: contents.clone(), _foreign: foreign }
    }

    /// Returns the first address and the key of a region.
    pub fn addr_and_key(&self, end: usize, area: Area) -> (u64, Key) {
        self.names[end][area.index()]
    }

    /// Deregisters and frees a region.
    pub fn deregister(&mut self, end: usize, area: Area) {
        self.buffers[end][area.index()] = None;
    }

    /// Returns true if the region was deregistered.
    pub fn is_deregistered(&self, end: usize, area: Area) -> bool {
        self.buffers[end][area.index()].is_none()
    }

    /// Returns the bytes in `ranges`, or `None` if one of the regions is deregistered.
    fn current(&self, ranges: &[Range]) -> Option<Vec<u8>> {
        let mut bytes = vec![0; ranges.iter().map(|range| range.len).sum()];
        let mut rest = &mut bytes[..];
        for range in ranges {
            let (here, after) = rest.split_at_mut(range.len);
            self.buffers[range.end][range.area.index()].as_ref()?.read(range.offset, here);
            rest = after;
        }
        Some(bytes)
    }

    fn shadow(&self, ranges: &[Range]) -> Vec<u8> {
        let part = |range: &Range| {
            &self.shadow[range.end][range.area.index()][range.offset..range.offset + range.len]
        };
        ranges.iter().flat_map(part).copied().collect()
    }

    fn set_shadow(&mut self, ranges: &[Range], bytes: &[u8]) {
        let mut rest = bytes;
        for range in ranges {
            let (here, after) = rest.split_at(range.len);
            let shadow = &mut self.shadow[range.end][range.area.index()];
            shadow[range.offset..range.offset + range.len].copy_from_slice(here);
            rest = after;
        }
    }

    /// Checks that `ranges` start with `bytes`, and that the rest is unchanged.
    pub fn expect(&mut self, ranges: &[Range], bytes: &[u8], what: impl Fn() -> String) -> Check {
        let Some(current) = self.current(ranges) else { return Ok(()) };
        let mut expected = self.shadow(ranges);
        expected[..bytes.len()].copy_from_slice(bytes);
        if let Some(at) = current.iter().zip(&expected).position(|(is, must)| is != must) {
            let (is, must, len) = (current[at], expected[at], bytes.len());
            return Err(format!(
                "{}: byte {at} of {len} is {is:#04x}, expected {must:#04x}",
                what()
            ));
        }
        self.set_shadow(ranges, &expected);
        Ok(())
    }

    /// Returns how many bytes of `payload` arrived in `ranges`: the minimum and the maximum,
    /// because new bytes may equal the old ones. Only whole packets may have arrived, and the rest
    /// must be unchanged. The current contents become the expected contents.
    pub fn arrived_bytes(
        &mut self,
        ranges: &[Range],
        payload: &[u8],
        mtu: usize,
        what: impl Fn() -> String,
    ) -> Result<(usize, usize), String> {
        let Some(current) = self.current(ranges) else { return Ok((0, payload.len())) };
        let old = self.shadow(ranges);
        let payload = &payload[..payload.len().min(current.len())];
        let same = current.iter().zip(payload).take_while(|(is, new)| is == new).count();
        let fits = |&n: &usize| n <= same && current[n..] == old[n..];
        let steps = (0..payload.len()).step_by(mtu).chain([payload.len()]);
        let (mut least, mut most) = (usize::MAX, 0);
        for n in steps.filter(fits) {
            (least, most) = (least.min(n), n);
        }
        if least == usize::MAX {
            return Err(format!(
                "{}: holds something else than old bytes and whole packets",
                what()
            ));
        }
        self.set_shadow(ranges, &current);
        Ok((least, most))
    }

    /// Checks that of each packet of `payload`, nothing or everything arrived in `ranges`, in any
    /// order. The current contents become the expected contents.
    pub fn arrived_packets(
        &mut self,
        ranges: &[Range],
        payload: &[u8],
        mtu: usize,
        what: impl Fn() -> String,
    ) -> Check {
        let Some(current) = self.current(ranges) else { return Ok(()) };
        let old = self.shadow(ranges);
        for start in (0..current.len()).step_by(mtu) {
            let end = (start + mtu).min(payload.len());
            let (is, new) = (&current[start..end], &payload[start..end]);
            if is != new && *is != old[start..end] {
                return Err(format!("{}: bytes {start} to {end} are a part of a packet", what()));
            }
        }
        self.set_shadow(ranges, &current);
        Ok(())
    }

    /// Overwrites `ranges` with random bytes, as a program would that reuses the memory.
    pub fn overwrite(&mut self, ranges: &[Range], random: &mut Random) {
        for &range in ranges {
            let bytes = random.bytes(range.len);
            if let Some(buffer) = &self.buffers[range.end][range.area.index()] {
                buffer.write(range.offset, &bytes);
                self.set_shadow(&[range], &bytes);
            }
        }
    }

    /// Returns the eight bytes that an atomic returned into `ranges`, and expects them from now on.
    pub fn atomic_result(&mut self, ranges: &[Range]) -> u64 {
        let bytes = self.current(ranges).expect("results of atomics lie in the pool");
        self.set_shadow(ranges, &bytes);
        u64::from_ne_bytes(bytes.try_into().expect("eight bytes"))
    }

    /// Returns the eight bytes in `range`, in native byte order.
    pub fn word(&mut self, range: Range) -> u64 {
        self.atomic_result(&[range])
    }

    /// Checks every byte of every registered region.
    pub fn check_all(&self) -> Check {
        for end in 0..2 {
            for area in Area::ALL {
                let whole = Range { end, area, offset: 0, len: area.len() };
                let Some(current) = self.current(&[whole]) else { continue };
                let shadow = &self.shadow[end][area.index()];
                if let Some(at) = current.iter().zip(shadow).position(|(is, must)| is != must) {
                    return Err(format!(
                        "memory of end {end}, {area:?}: byte {at} changed without a request: \\
                         {:#04x}, expected {:#04x}",
                        current[at], shadow[at]
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Registers [`Area::Top`] with any free key.
fn top_buffer(pd: &ProtectionDomain) -> Buffer {
    let area = Area::Top;
    (0..256)
        .rev()
        .map(|index| Key::from_parts(index, 0x5a))
        .find_map(|key| pd.alloc_buffer_as(TOP_ADDRESS, area.len(), area.access(), key).ok())
        .expect("a free key")
}
