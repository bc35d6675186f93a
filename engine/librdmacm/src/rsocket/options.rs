//! Options that programs set with `rsetsockopt` and read with `rgetsockopt`.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use super::configuration::Configuration;
use super::protocol;
use super::stream::{SEND_LOW_WATER, Sizes};

/// Level of the options that only rsockets have.
pub const SOL_RDMA: c_int = 0x10000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
/// Sets the path; its value is not an integer.
pub const RDMA_ROUTE: c_int = 4;

/// Limits of queue sizes, which any device supports.
const QUEUE_MIN: u16 = 16;
const QUEUE_MAX: u16 = 0xfffe;
/// Linux' default keep-alive time: two hours, in seconds.
const KEEP_ALIVE_TIME: u32 = 7200;
/// `TCP_MAXSEG` as `rgetsockopt` returns it, always.
const MAXSEG: c_int = 2048;

/// The options of a socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Work requests in the send queue.
    pub send_queue: u16,
    /// Messages that can be received before the program reads.
    pub receive_queue: u16,
    /// Bytes that can be queued for sending.
    pub send_buffer: u32,
    /// Bytes that can be received before the program reads.
    pub receive_buffer: u32,
    /// Largest number of data bytes sent inline.
    pub inline: u16,
    /// Number of buffers that the peer may map.
    pub mappings: u16,
    reuse_address: bool,
    keep_alive: bool,
    /// Seconds; 0 selects the host's value.
    keep_alive_time: u32,
    oob_inline: bool,
    linger_off: bool,
    no_delay: bool,
    v6_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        let configured = Configuration::get();
        Self {
            send_queue: configured.send_queue,
            receive_queue: configured.receive_queue,
            send_buffer: configured.send_buffer,
            receive_buffer: configured.receive_buffer,
            inline: configured.inline,
            mappings: configured.mappings,
            reuse_address: false,
            keep_alive: false,
            keep_alive_time: 0,
            oob_inline: false,
            linger_off: false,
            no_delay: false,
            v6_only: false,
        }
    }
}

impl Options {
    /// Returns the options of a socket accepted by a listener with these options.
    pub fn inherited(&self) -> Self {
        Self {
            send_queue: self.send_queue,
            receive_queue: self.receive_queue,
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer,
            inline: self.inline,
            mappings: self.mappings,
            ..Self::default()
        }
    }

    /// Returns the sizes of a stream, within their limits.
    pub fn sizes(&self) -> Sizes {
        Sizes {
            send_queue: self.send_queue.clamp(QUEUE_MIN, QUEUE_MAX),
            receive_queue: self.receive_queue.clamp(QUEUE_MIN, QUEUE_MAX),
            send_buffer: self.send_buffer,
            receive_buffer: self.receive_buffer.max(2) & !1, // even, for two halves
        }
    }

    /// Returns how long a connection may be silent before a keep-alive is sent; `None` if
    /// keep-alive is off.
    pub fn keep_alive_period(&self) -> Option<Duration> {
        self.keep_alive.then(|| Duration::from_secs(self.keep_alive_seconds().into()))
    }

    fn keep_alive_seconds(&self) -> u32 {
        if self.keep_alive_time > 0 {
            return self.keep_alive_time;
        }
        let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_keepalive_time");
        text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(KEEP_ALIVE_TIME)
    }

    /// Stores the value of an option. The caller also passes the options that the RDMA CM
    /// identifier or the UDP socket needs to them.
    ///
    /// # Errors
    /// ENOTSUP for unknown options, EINVAL for invalid values.
    pub fn set(&mut self, option: (c_int, c_int), value: c_int) -> Result<(), c_int> {
        let on = value != 0;
        match option {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address = on,
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keep_alive = on,
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline = on,
            (libc::SOL_SOCKET, libc::SO_LINGER) => self.linger_off = !on,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_buffer = doubled(value),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => {
                let doubled = doubled(value);
                let enough = doubled >= SEND_LOW_WATER;
                self.send_buffer = if enough { doubled } else { 2 * SEND_LOW_WATER };
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) if value > 0 => {
                self.keep_alive_time = value.unsigned_abs();
            }
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => return Err(libc::EINVAL),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay = on,
            // Without effect: the QP's retry count and ACK timeout replace TCP_KEEPCNT and
            // TCP_KEEPINTVL, and RC segments at the path MTU whatever TCP_MAXSEG says.
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL | libc::TCP_MAXSEG) => {}
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6_only = on,
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue = queue(value),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue = queue(value),
            (SOL_RDMA, RDMA_INLINE) => self.inline = queue(value),
            (SOL_RDMA, RDMA_IOMAPSIZE) => {
                let entries = u16::try_from(value.max(0)).unwrap_or(u16::MAX);
                self.mappings = protocol::round_mappings(entries);
            }
            _ => return Err(libc::ENOTSUP),
        }
        Ok(())
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// ENOTSUP for unknown options.
    pub fn get(&self, option: (c_int, c_int)) -> Result<c_int, c_int> {
        let size = |bytes: u32| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        Ok(match option {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => self.keep_alive.into(),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE) => self.oob_inline.into(),
            (libc::SOL_SOCKET, libc::SO_LINGER) => (!self.linger_off).into(),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => size(self.receive_buffer),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => size(self.send_buffer),
            (libc::IPPROTO_TCP, libc::TCP_KEEPCNT | libc::TCP_KEEPINTVL) => 1,
            (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => size(self.keep_alive_time),
            (libc::IPPROTO_TCP, libc::TCP_NODELAY) => self.no_delay.into(),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => MAXSEG,
            (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY) => self.v6_only.into(),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_queue.into(),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_queue.into(),
            (SOL_RDMA, RDMA_INLINE) => self.inline.into(),
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.mappings.into(),
            _ => return Err(libc::ENOTSUP),
        })
    }
}

fn doubled(value: c_int) -> u32 {
    value.cast_unsigned() << 1
}

fn queue(value: c_int) -> u16 {
    u16::try_from(value.cast_unsigned()).unwrap_or(QUEUE_MAX).min(QUEUE_MAX)
}

/// Reads the integer that a program passes; for `SO_LINGER`, `l_onoff` of its `struct linger`.
///
/// # Safety
/// `value` is null or has `length` readable bytes.
pub unsafe fn number(value: *const c_void, length: usize) -> Result<c_int, c_int> {
    if value.is_null() || length < size_of::<c_int>() {
        return Err(libc::EINVAL);
    }
    // SAFETY: `value` is not null and has at least the bytes of an `int`.
    Ok(unsafe { value.cast::<c_int>().read_unaligned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_return_the_value_set() {
        let mut options = Options::default();
        let cases = [
            ((libc::SOL_SOCKET, libc::SO_REUSEADDR), 5, 1),
            ((libc::SOL_SOCKET, libc::SO_LINGER), 0, 0),
            ((libc::SOL_SOCKET, libc::SO_RCVBUF), 10_000, 20_000),
            ((libc::SOL_SOCKET, libc::SO_SNDBUF), 10_000, 20_000),
            ((libc::SOL_SOCKET, libc::SO_SNDBUF), 100, 4096),
            ((libc::IPPROTO_TCP, libc::TCP_NODELAY), 1, 1),
            ((libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 9, 9),
            ((SOL_RDMA, RDMA_SQSIZE), 1 << 20, 0xfffe),
            ((SOL_RDMA, RDMA_RQSIZE), 100, 100),
            ((SOL_RDMA, RDMA_INLINE), 16, 16),
            ((SOL_RDMA, RDMA_IOMAPSIZE), 300, 256),
        ];
        for (option, value, expected) in cases {
            assert_eq!(options.set(option, value), Ok(()));
            assert_eq!(options.get(option), Ok(expected), "{option:?}");
        }
        let inherited = options.inherited();
        assert_eq!((inherited.receive_buffer, inherited.no_delay), (20_000, false));
        assert_eq!(options.keep_alive_period(), None);
        options.set((libc::SOL_SOCKET, libc::SO_KEEPALIVE), 1).unwrap();
        assert_eq!(options.keep_alive_period(), Some(Duration::from_secs(9)));
    }

    #[test]
    fn unknown_options_are_rejected() {
        let mut options = Options::default();
        assert_eq!(options.set((libc::IPPROTO_TCP, libc::TCP_KEEPIDLE), 0), Err(libc::EINVAL));
        assert_eq!(options.set((libc::SOL_SOCKET, libc::SO_BROADCAST), 1), Err(libc::ENOTSUP));
        assert_eq!(options.get((libc::SOL_IP, libc::IP_TOS)), Err(libc::ENOTSUP));
    }

    #[test]
    fn stream_sizes_have_minimums() {
        let mut options = Options::default();
        (options.receive_buffer, options.send_queue) = (1, 2);
        let sizes = options.sizes();
        assert_eq!((sizes.receive_buffer, sizes.send_queue), (2, 16));
    }
}
