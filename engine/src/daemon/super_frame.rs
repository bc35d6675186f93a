//! Checks whether a frame of a client may share a super-frame with the frame before it. The rules
//! are those of [`crate::port::super_frame`], which the core of a well-behaved client follows.

use super::client::ClientId;
use super::frames::ip_offset;

/// Bytes of the longest headers up to the UDP checksum: Ethernet, tag, IPv6, UDP.
const HEADERS_MAX: usize = 18 + 40 + 8;

/// Compares each frame with the frame that was queued before it.
#[derive(Debug, Default)]
pub(super) struct SuperFrameCheck {
    last: Option<Last>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Last {
    client: ClientId,
    /// The headers without lengths, identification and checksums.
    headers: [u8; HEADERS_MAX],
    /// IPv4 identification; 0 for IPv6.
    identification: u16,
    is_v4: bool,
}

impl SuperFrameCheck {
    /// The next frame begins a super-frame of its own.
    pub(super) fn end(&mut self) {
        self.last = None;
    }

    /// Records that `frame` of `client`, a valid RoCE packet, is queued. Returns true if the frame
    /// may join the super-frame of the frame before it. `joins`: the client requests that.
    pub(super) fn follows(&mut self, client: ClientId, frame: &[u8], joins: bool) -> bool {
        let this = Last::of(client, frame);
        let last = std::mem::replace(&mut self.last, this);
        let (Some(last), Some(this), true) = (last, this, joins) else { return false };
        let counted = if this.is_v4 { last.identification.checked_add(1) } else { Some(0) };
        counted == Some(this.identification)
            && Last { identification: this.identification, ..last } == this
    }
}

impl Last {
    fn of(client: ClientId, frame: &[u8]) -> Option<Self> {
        let ip = ip_offset(frame);
        let is_v4 = *frame.get(ip)? >> 4 == 4;
        let udp = ip + if is_v4 { 20 } else { 40 };
        let end = udp + 8;
        let mut headers = [0; HEADERS_MAX];
        headers[..end].copy_from_slice(frame.get(..end)?);
        let mut identification = 0;
        if is_v4 {
            identification = u16::from_be_bytes([headers[ip + 4], headers[ip + 5]]);
            headers[ip + 2..ip + 6].fill(0);
            headers[ip + 10..ip + 12].fill(0);
        } else {
            headers[ip + 4..ip + 6].fill(0);
        }
        headers[udp + 4..udp + 8].fill(0);
        Some(Self { client, headers, identification, is_v4 })
    }
}
