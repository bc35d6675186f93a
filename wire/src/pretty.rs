//! A packet as one line of text, as a packet analyser prints it.

use core::{fmt, net::IpAddr};

use crate::{Ecn, ExtHeaders, Packet};

impl fmt::Display for Packet<'_> {
    /// `10.0.0.1.49152 > 10.0.0.2.4791: RC Send Only qp 0x000011 psn 77 A, payload 64`. After the
    /// PSN: `A` acknowledge request, `S` solicited event, `F` FECN, `B` BECN, `CE` marked by a
    /// switch.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_address(f, self.ip.src(), self.udp.src_port)?;
        f.write_str(" > ")?;
        write_address(f, self.ip.dst(), self.udp.dst_port)?;
        let bth = &self.bth;
        write!(f, ": {} qp {} psn {}", self.info.name, bth.dest_qp, bth.psn)?;
        let flags = [
            (bth.ack_req, "A"),
            (bth.solicited, "S"),
            (bth.fecn, "F"),
            (bth.becn, "B"),
            (self.ip.ecn() == Ecn::Ce, "CE"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            write!(f, " {name}")?;
        }
        if let Some(tag) = self.vlan {
            write!(f, " vlan {} pcp {}", tag.id, tag.pcp)?;
        }
        write_ext(f, &self.ext)?;
        if !self.payload.is_empty() {
            write!(f, ", payload {}", self.payload.len())?;
        }
        Ok(())
    }
}

fn write_address(f: &mut fmt::Formatter<'_>, address: IpAddr, port: u16) -> fmt::Result {
    write!(f, "{address}.{port}")
}

fn write_ext(f: &mut fmt::Formatter<'_>, ext: &ExtHeaders) -> fmt::Result {
    if let Some(xrceth) = ext.xrceth {
        write!(f, " srq {:#08x}", xrceth.srqn)?;
    }
    if let Some(deth) = ext.deth {
        write!(f, " qkey {:#010x} src-qp {}", deth.qkey.0, deth.src_qp)?;
    }
    if let Some(feth) = ext.feth {
        let (placement, selectivity) = (feth.placement.0, feth.selectivity.bits());
        write!(f, " placement {placement} selectivity {selectivity}")?;
    }
    if let Some(reth) = ext.reth {
        let (va, rkey, len) = (reth.va, reth.rkey, reth.dma_len);
        write!(f, " va {va:#x} rkey {rkey} len {len}")?;
    }
    if let Some(atomic) = ext.atomic_eth {
        let (va, rkey) = (atomic.va, atomic.rkey);
        let (operand, compare) = (atomic.swap_or_add, atomic.compare);
        write!(f, " va {va:#x} rkey {rkey} operand {operand:#x} compare {compare:#x}")?;
    }
    if let Some(aeth) = ext.aeth {
        write!(f, " {} msn {}", aeth.syndrome, aeth.msn)?;
    }
    if let Some(ack) = ext.atomic_ack {
        write!(f, " original {:#x}", ack.original)?;
    }
    if let Some(imm) = ext.imm {
        write!(f, " imm {:#010x}", imm.0)?;
    }
    if let Some(ieth) = ext.ieth {
        write!(f, " invalidate {}", ieth.rkey)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::{string::ToString, vec::Vec};

    use crate::{Bth, Psn, Qpn, Reth, write_transport};
    use crate::{FlowHeader, FlowSpec, IpAddresses, Key, MacAddr, Opcode, VlanTag};

    fn sealed(spec: &FlowSpec, bth: &Bth, ext: &ExtHeaders, payload: usize) -> Vec<u8> {
        let flow = FlowHeader::new(spec);
        let mut frame = std::vec![0; 256];
        let len = write_transport(&mut frame[flow.len()..], bth, ext) + payload;
        let len = flow.seal(&mut frame, len, 1);
        frame.truncate(len);
        frame
    }

    #[test]
    fn a_packet_is_one_line() {
        let addresses = IpAddresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
        let mut spec = FlowSpec {
            traffic_class: 2,
            ..FlowSpec::new(MacAddr([1; 6]), MacAddr([2; 6]), addresses)
        };
        let mut bth = Bth {
            opcode: Opcode::RC_WRITE_ONLY,
            dest_qp: Qpn::masked(0x11),
            ack_req: true,
            psn: Psn::new(77),
            ..Bth::default()
        };
        let ext = ExtHeaders {
            reth: Some(Reth { va: 0x7f00_1000, rkey: Key(0x1234_5678), dma_len: 64 }),
            ..ExtHeaders::default()
        };
        let frame = sealed(&spec, &bth, &ext, 64);
        assert_eq!(
            Packet::parse(&frame, &[]).unwrap().to_string(),
            "10.0.0.1.49152 > 10.0.0.2.4791: RC RDMA Write Only qp 0x000011 psn 77 A \
             va 0x7f001000 rkey 0x12345678 len 64, payload 64"
        );

        spec.traffic_class = 3;
        spec.vlan = Some(VlanTag { id: 7, pcp: 3, dei: false });
        spec.addresses =
            IpAddresses::V6 { src: "fd77::2".parse().unwrap(), dst: "fd77::3".parse().unwrap() };
        bth.opcode = Opcode::RC_ACKNOWLEDGE;
        bth.ack_req = false;
        let ext = ExtHeaders {
            aeth: Some(crate::Aeth::parse(&[0x2c, 0, 0, 5]).unwrap()),
            ..ExtHeaders::default()
        };
        let frame = sealed(&spec, &bth, &ext, 0);
        assert_eq!(
            Packet::parse(&frame, &[]).unwrap().to_string(),
            "fd77::2.49152 > fd77::3.4791: RC Acknowledge qp 0x000011 psn 77 CE vlan 7 pcp 3 \
             rnr-nak 640 us msn 5"
        );
    }
}
