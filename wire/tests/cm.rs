//! MADs of communication management from literal bytes: which are refused, and the transport.

use feroce_wire::cm::Transport;
use feroce_wire::{CmMad, CmMessage, MAD_LEN, MadError};

/// A REQ of zeros: base version 1, class 7, class version 2, method Send, attribute 0x0010.
fn req() -> [u8; MAD_LEN] {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, 0x07, 2, 0x03]);
    mad[16..18].copy_from_slice(&0x0010_u16.to_be_bytes());
    mad
}

#[test]
fn each_field_of_the_header_is_checked() {
    assert!(CmMad::parse(&req()).is_ok());
    let fields = [
        (0, MadError::BaseVersion(9)),
        (1, MadError::Class(9)),
        (2, MadError::ClassVersion(9)),
        (3, MadError::Method(9)),
        (17, MadError::Attribute(9)),
    ];
    for (at, error) in fields {
        let mut mad = req();
        mad[at] = 9;
        assert_eq!(CmMad::parse(&mad), Err(error));
    }
    assert_eq!(CmMad::parse(&req()[1..]), Err(MadError::Length(MAD_LEN - 1)));
}

#[test]
fn the_header_is_written() {
    let mad = CmMad::parse(&req()).unwrap().to_bytes();
    assert_eq!(mad[..24], req()[..24]);
}

#[test]
fn a_req_keeps_its_transport() {
    let mad = CmMad::parse(&req()).unwrap();
    let CmMessage::Req(mut req) = mad.message else { panic!("{mad:?}") };
    assert_eq!(req.connection(), Some(Transport::Rc), "0");
    for transport in [Transport::Xrc, Transport::Uc, Transport::Rc] {
        req.set_connection(transport);
        let written = CmMad { message: CmMessage::Req(req), ..mad }.to_bytes();
        let CmMessage::Req(read) = CmMad::parse(&written).unwrap().message else { panic!("REQ") };
        assert_eq!(read.connection(), Some(transport));
    }
}
