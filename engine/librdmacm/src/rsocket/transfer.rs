//! Sending and receiving on a stream socket.

use std::ffi::c_int;

use super::gather::Gather;
use super::mapping::Announced;
use super::socket::{Inner, StreamSocket};
use super::stream::Pieces;
use super::wait::lock;

/// Whether a call can go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It can.
    Go,
    /// The other half is closed, or both are.
    Ended,
}

fn may_send(inner: &mut Inner) -> Option<Turn> {
    let Some(link) = inner.link() else { return Some(Turn::Ended) };
    if !link.stream.is_writable() {
        return Some(Turn::Ended);
    }
    link.can_send().then_some(Turn::Go)
}

fn may_receive(inner: &mut Inner) -> Option<Turn> {
    let Some(link) = inner.link() else { return Some(Turn::Ended) };
    if link.stream.has_data() {
        return Some(Turn::Go);
    }
    (!link.stream.is_readable()).then_some(Turn::Ended)
}

/// What a call returns that has done so much before it failed.
fn partly(done: usize, result: Result<(), c_int>) -> Result<usize, c_int> {
    match result {
        Err(error) if done == 0 => Err(error),
        _ => Ok(done),
    }
}

impl StreamSocket {
    /// Sends the program's bytes; how many, which is less than all only if it does not wait or the connection ends.
    ///
    /// # Safety
    /// The bytes can be read.
    pub unsafe fn send(&self, mut from: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
        let nonblocking = self.is_nonblocking(flags);
        self.wait_open(nonblocking)?;
        let _one = lock(&self.sending);
        let all = from.left();
        let sent = self.announce_mappings(nonblocking).and_then(|()| {
            let mut pieces = Pieces::default();
            while from.left() > 0 {
                self.wait(nonblocking, |inner| {
                    may_send(inner).map(|turn| match (turn, inner.link()) {
                        // SAFETY: the caller says so.
                        (Turn::Go, Some(link)) => unsafe { link.send(&mut from, &mut pieces) },
                        _ => Err(libc::ECONNRESET),
                    })
                })??;
            }
            Ok(())
        });
        partly(all - from.left(), sent)
    }

    /// Writes the program's bytes into what the peer has mapped at an offset; how many.
    ///
    /// # Safety
    /// The bytes can be read.
    pub unsafe fn write_mapped(
        &self,
        mut from: Gather<'_>,
        mut offset: u64,
        flags: c_int,
    ) -> Result<usize, c_int> {
        let nonblocking = self.is_nonblocking(flags);
        self.wait_open(nonblocking)?;
        let _one = lock(&self.sending);
        let all = from.left();
        let sent = self.announce_mappings(nonblocking).and_then(|()| {
            let mut pieces = Pieces::default();
            while from.left() > 0 {
                let mapped = self.lock().link().and_then(|link| link.mapping(offset));
                let Some(mapping) = mapped else { break };
                let length = self.wait(nonblocking, |inner| {
                    may_send(inner).map(|turn| match (turn, inner.link()) {
                        // SAFETY: the caller says so.
                        (Turn::Go, Some(link)) => unsafe {
                            link.send_mapped(&mut from, (offset, &mapping), &mut pieces)
                        },
                        _ => Err(libc::ECONNRESET),
                    })
                })??;
                offset += u64::from(length);
            }
            Ok(())
        });
        partly(all - from.left(), sent)
    }

    /// Tells the peer of buffers that were mapped since.
    fn announce_mappings(&self, nonblocking: bool) -> Result<(), c_int> {
        while self.lock().mappings.has_unannounced() {
            self.wait(nonblocking, |inner| {
                may_send(inner).map(|turn| {
                    if turn == Turn::Ended {
                        return Err(libc::ECONNRESET);
                    }
                    if let Some(Announced { index, mapping }) = inner.mappings.announce()
                        && let Some(link) = inner.link()
                    {
                        link.announce_mapping(index, &mapping);
                    }
                    Ok(())
                })
            })??;
        }
        Ok(())
    }

    /// Receives into the program's memory; how many bytes, 0 at the end.
    ///
    /// # Errors
    /// EAGAIN, EINTR, ENOTCONN; ECONNRESET if the connection broke.
    ///
    /// # Safety
    /// The memory can be written.
    pub unsafe fn receive(&self, mut to: Gather<'_>, flags: c_int) -> Result<usize, c_int> {
        let nonblocking = self.is_nonblocking(flags);
        self.wait_open(nonblocking)?;
        let _one = lock(&self.receiving);
        let all = to.left();
        let received = (|| {
            while to.left() > 0 {
                let turn = self.wait(nonblocking, |inner| {
                    let turn = may_receive(inner)?;
                    if turn == Turn::Ended {
                        return Some(inner.end_of_data());
                    }
                    let link = inner.link()?;
                    if flags & libc::MSG_PEEK != 0 {
                        // SAFETY: the caller says so. One part is looked at.
                        to.fill(|begin, length| unsafe { link.peek(begin, length) });
                    } else {
                        // SAFETY: the caller says so.
                        to.fill(|begin, length| unsafe { link.read(begin, length) });
                        link.progress(); // Room for the peer.
                    }
                    Some(Ok(Turn::Go))
                })??;
                let all_wanted = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
                if turn == Turn::Ended || !all_wanted {
                    break;
                }
            }
            Ok(())
        })();
        partly(all - to.left(), received)
    }
}

impl Inner {
    /// What a program is told that wants to read and will get nothing more.
    fn end_of_data(&mut self) -> Result<Turn, c_int> {
        let broke = self.link().is_some_and(|link| link.is_broken());
        if broke { Err(libc::ECONNRESET) } else { Ok(Turn::Ended) }
    }
}
