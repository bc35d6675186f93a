//! The rules of messages: the order of their packets, and the lengths of the packets.

use feroce_wire::{Operation, PayloadRule, Position};

use super::requester::Request;
use crate::flow::Message;
use crate::rules::RuleId;

/// The longest message, in bytes.
const LONGEST: u32 = 1 << 31;

impl Request<'_, '_> {
    /// Checks that the packets of a message follow each other and have valid lengths.
    pub fn sequence(&mut self) {
        let info = self.seen.packet.info;
        let len = self.seen.packet.payload.len();
        self.learn_mtu(len);
        self.lengths(len);
        if !matches!(info.operation, Operation::Send | Operation::Write) {
            if let Message::Within { operation, .. } = self.channel.message {
                self.disorder(operation);
            }
            self.channel.message = Message::Between;
            return;
        }
        let starts = info.position.starts_message();
        let total = self.seen.packet.ext.reth.map(|reth| reth.dma_len);
        let (bytes, total) = match self.channel.message {
            Message::Within { operation, .. } if starts || operation != info.operation => {
                self.disorder(operation);
                (len as u64, starts.then_some(total).flatten())
            }
            Message::Within { bytes, total, .. } => (bytes + len as u64, total),
            Message::Between if !starts => {
                self.out.add(RuleId::Sequence, self.place, || {
                    format!(
                        "{} where a message must begin: the previous message has ended",
                        info.name
                    )
                });
                (0, None)
            }
            Message::Unknown if !starts => {
                if info.position.ends_message() {
                    self.channel.message = Message::Between;
                }
                return;
            }
            Message::Between | Message::Unknown => (len as u64, total),
        };
        if info.position.ends_message() {
            self.channel.message = Message::Between;
            if let Some(total) = total.filter(|&total| u64::from(total) != bytes) {
                self.out.add(RuleId::WriteLength, self.place, || {
                    format!(
                        "the WRITE that ends here carried {bytes} bytes, but its RETH says {total}"
                    )
                });
            }
        } else {
            self.channel.message = Message::Within { operation: info.operation, bytes, total };
        }
    }

    fn disorder(&mut self, within: Operation) {
        let name = self.seen.packet.info.name;
        self.out.add(RuleId::Sequence, self.place, || {
            format!("{name} inside a message ({within:?}) that has not ended")
        });
    }

    fn learn_mtu(&mut self, len: usize) {
        let rule = self.seen.packet.info.payload;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        if self.channel.path_mtu.is_none()
            && rule == PayloadRule::PathMtu
            && feroce_wire::PathMtu::from_bytes(len).is_some()
        {
            self.channel.path_mtu = Some(len);
        }
    }

    fn lengths(&mut self, len: usize) {
        let packet = &self.seen.packet;
        let mtu = self.channel.path_mtu.map_or(4096, |mtu| mtu as usize);
        let rule = packet.info.payload;
        let is_limited = matches!(
            rule,
            PayloadRule::PathMtu | PayloadRule::OneToPathMtu | PayloadRule::UpToPathMtu
        );
        if is_limited && !rule.allows(len, mtu) {
            self.out.add(RuleId::Mtu, self.place, || {
                format!(
                    "{} with {len} bytes of payload, but the path MTU is {mtu}",
                    packet.info.name
                )
            });
        }
        if let Some(reth) = packet.ext.reth.filter(|reth| reth.dma_len > LONGEST) {
            self.out.add(RuleId::DmaLength, self.place, || {
                format!("{} of {} bytes: the maximum is 2^31", packet.info.name, reth.dma_len)
            });
        }
        let reth = packet.ext.reth.map(|reth| (reth.va, u64::from(reth.dma_len)));
        let range = reth.or(packet.ext.atomic_eth.map(|atomic| (atomic.va, 8)));
        if let Some((va, len)) = range
            && len > 0
            && va.checked_add(len - 1).is_none()
        {
            self.out.add(RuleId::AddressRange, self.place, || {
                format!("{} of {len} bytes at {va:#x}, which ends beyond 2^64", packet.info.name)
            });
        }
        if let Some(atomic) = packet.ext.atomic_eth.filter(|atomic| !atomic.va.is_multiple_of(8)) {
            self.out.add(RuleId::AtomicAlign, self.place, || {
                format!("an atomic at address {:#x}, which is not a multiple of 8", atomic.va)
            });
        }
        let may_be_solicited = matches!(packet.info.position, Position::Last | Position::Only)
            && (packet.info.operation == Operation::Send || packet.ext.imm.is_some());
        if packet.bth.solicited && !may_be_solicited {
            self.out.add(RuleId::Solicited, self.place, || {
                format!("{} requests a solicited event", packet.info.name)
            });
        }
    }
}
