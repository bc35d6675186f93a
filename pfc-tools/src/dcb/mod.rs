//! Data center bridging over netlink: reads and sets what `dcb` of iproute2 shows and sets.
//!
//! [`Dcb::ieee`] sends `RTM_GETDCB` with `DCB_CMD_IEEE_GET`. The response holds the driver's state
//! of IEEE 802.1Qaz and Linux's extensions: PFC, ETS, application and DSCP priorities, rate limits,
//! buffers, and the trust mode of the port. Most drivers do not support DCB, and neither does veth:
//! the kernel then responds with EOPNOTSUPP, which is [`DcbError::NotSupported`].
//!
//! ```no_run
//! use feroce_pfc_tools::dcb::Dcb;
//!
//! let ieee = Dcb::open()?.ieee("eth0")?;
//! println!("lossless: {:?}", ieee.pfc.map(|pfc| pfc.priorities().collect::<Vec<_>>()));
//! # Ok::<(), feroce_pfc_tools::dcb::DcbError>(())
//! ```

mod error;
mod message;
mod value;

use std::io;

use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

pub use error::DcbError;
use message::DcbMessage;
pub use value::{App, Buffers, Dcbx, Ets, Ieee, MaxRate, Pfc, Selector, Setting, Tsa};

/// Larger than any response: application tables have a few entries of 8 bytes.
const BUFFER_LEN: usize = 64 * 1024;
/// The kernel responds before `send` of the request returns, so `recv` need not wait.
const MSG_DONTWAIT: i32 = 0x40;
/// Makes `recv` return the full length of a message that did not fit.
const MSG_TRUNC: i32 = 0x20;

const ENODEV: i32 = 19;
const EOPNOTSUPP: i32 = 95;
const EPERM: i32 = 1;
const EACCES: i32 = 13;

/// A netlink socket. It belongs to the network namespace of the thread that opened it.
pub struct Dcb {
    socket: Socket,
    sequence: u32,
    buffer: Box<[u8]>,
}

impl std::fmt::Debug for Dcb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dcb").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Dcb {
    /// Opens a socket.
    ///
    /// # Errors
    /// If the system refuses a netlink socket.
    pub fn open() -> Result<Self, DcbError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_LEN].into_boxed_slice() })
    }

    /// The IEEE 802.1Qaz state of an interface.
    ///
    /// # Errors
    /// [`DcbError::NotSupported`] if the driver does not support DCB; see [`DcbError`].
    pub fn ieee(&mut self, interface: &str) -> Result<Ieee, DcbError> {
        message::ieee(&self.exchange(interface, DcbMessage::get_ieee(interface))?)
    }

    /// The DCBX mode of an interface: who negotiates with the peer, and in which version.
    ///
    /// # Errors
    /// See [`Dcb::ieee`].
    pub fn dcbx(&mut self, interface: &str) -> Result<Dcbx, DcbError> {
        message::dcbx(&self.exchange(interface, DcbMessage::get_dcbx(interface))?)
    }

    /// Sets a value.
    ///
    /// # Errors
    /// [`DcbError::Permission`] without CAP_NET_ADMIN; see [`Dcb::ieee`].
    pub fn set(&mut self, interface: &str, setting: &Setting) -> Result<(), DcbError> {
        let response = self.exchange(interface, DcbMessage::set(interface, setting))?;
        outcome(interface, message::set_outcome(&response)?)
    }

    /// Sends a request and returns its response.
    fn exchange(&mut self, interface: &str, request: DcbMessage) -> Result<DcbMessage, DcbError> {
        if interface.is_empty() || interface.len() > 15 || interface.contains('\0') {
            return Err(DcbError::Name(interface.to_owned()));
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        // No NLM_F_ACK: errors are reported in any case, and an acknowledgement beside the response
        // would stay in the socket.
        header.flags = NLM_F_REQUEST;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        loop {
            let mut room = &mut self.buffer[..];
            let (length, sender) = self.socket.recv_from(&mut room, MSG_DONTWAIT | MSG_TRUNC)?;
            if sender.port_number() != 0 {
                continue; // Only the kernel has port 0.
            }
            let bytes = self.buffer.get(..length).ok_or(DcbError::Malformed("too long"))?;
            let message = NetlinkMessage::<DcbMessage>::deserialize(bytes)
                .map_err(|_| DcbError::Malformed("no netlink message"))?;
            let (header, payload) = message.into_parts();
            if header.sequence_number != self.sequence {
                continue;
            }
            match payload {
                NetlinkPayload::InnerMessage(response) => return Ok(response),
                NetlinkPayload::Error(error) => outcome(interface, error.raw_code())?,
                _ => return Err(DcbError::Malformed("neither a response nor an error")),
            }
        }
    }
}

/// Converts a negated error number, or 0.
fn outcome(interface: &str, code: i32) -> Result<(), DcbError> {
    let name = interface.to_owned();
    match code.saturating_neg() {
        0 => Ok(()),
        ENODEV => Err(DcbError::NoInterface(name)),
        EOPNOTSUPP => Err(DcbError::NotSupported(name)),
        EPERM | EACCES => Err(DcbError::Permission(name)),
        errno => Err(io::Error::from_raw_os_error(errno).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Queries this machine's kernel, which may not support DCB. Changes nothing.
    #[test]
    fn the_kernel_responds() {
        let mut dcb = Dcb::open().expect("a netlink socket");
        assert!(matches!(dcb.ieee("lo"), Err(DcbError::NotSupported(name)) if name == "lo"));
        assert!(matches!(dcb.dcbx("lo"), Err(DcbError::NotSupported(_))));
        let missing = dcb.ieee("no-such-if0");
        assert!(matches!(missing, Err(DcbError::NoInterface(_) | DcbError::NotSupported(_))));
        assert!(matches!(dcb.ieee("a name that is too long"), Err(DcbError::Name(_))));
    }

    #[test]
    fn error_numbers_are_mapped() {
        assert!(outcome("x", 0).is_ok());
        assert!(matches!(outcome("x", -95), Err(DcbError::NotSupported(_))));
        assert!(matches!(outcome("x", -19), Err(DcbError::NoInterface(_))));
        assert!(matches!(outcome("x", -1), Err(DcbError::Permission(_))));
        assert!(matches!(outcome("x", -22), Err(DcbError::System(_))));
    }
}
