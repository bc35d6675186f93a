//! Writing the transport part of a packet into a transmit buffer.

use crate::{Bth, ExtHeaders, Opcode};

/// Writes the BTH and the extended headers of its opcode to the front of `out`. Returns the offset
/// of the payload in bytes.
///
/// # Panics
/// If `out` is too short, if the opcode has no entry in the table, or if `ext` does not contain
/// exactly the headers of the opcode. All of these are mistakes of the caller.
#[inline]
pub fn write_transport(out: &mut [u8], bth: &Bth, ext: &ExtHeaders) -> usize {
    bth.write(out);
    Bth::LEN + write_extended(&mut out[Bth::LEN..], bth.opcode, ext)
}

/// Writes the extended headers of `opcode` to the front of `out`. Returns their length in bytes.
///
/// # Panics
/// As [`write_transport`].
pub fn write_extended(out: &mut [u8], opcode: Opcode, ext: &ExtHeaders) -> usize {
    let Some(info) = opcode.info() else {
        panic!("{opcode} cannot be built");
    };
    match ext.write(info.headers, out) {
        Ok(len) => len,
        Err(error) => panic!("{}: {error}", info.name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::{Aeth, Syndrome};

    fn acknowledge() -> (Bth, ExtHeaders) {
        let bth = Bth { opcode: Opcode::RC_ACKNOWLEDGE, ..Bth::default() };
        let ext = ExtHeaders {
            aeth: Some(Aeth::parse(&[0x1f, 0, 0, 9]).unwrap()),
            ..ExtHeaders::default()
        };
        (bth, ext)
    }

    #[test]
    fn headers_follow_the_opcode() {
        let (bth, ext) = acknowledge();
        let mut out = [0xa5; 20];
        assert_eq!(write_transport(&mut out, &bth, &ext), 16);
        assert_eq!(Bth::parse(&out), Ok(bth));
        assert_eq!(out[12..], [0x1f, 0, 0, 9, 0xa5, 0xa5, 0xa5, 0xa5]);
        let syndrome = ext.aeth.unwrap().syndrome;
        assert!(matches!(syndrome, Syndrome::Ack(_)));
    }

    #[test]
    #[should_panic(expected = "RC Send Only: the extended headers are not those of the opcode")]
    fn a_header_that_the_opcode_excludes_panics() {
        let (_, ext) = acknowledge();
        let bth = Bth { opcode: Opcode::RC_SEND_ONLY, ..Bth::default() };
        write_transport(&mut [0; 64], &bth, &ext);
    }

    #[test]
    #[should_panic(expected = "RC Acknowledge: the extended headers are not those of the opcode")]
    fn a_missing_header_panics() {
        let (bth, _) = acknowledge();
        write_transport(&mut [0; 64], &bth, &ExtHeaders::default());
    }

    #[test]
    #[should_panic(expected = "opcode 0xff cannot be built")]
    fn an_unknown_opcode_panics() {
        let bth = Bth { opcode: Opcode(0xff), ..Bth::default() };
        write_transport(&mut [0; 64], &bth, &ExtHeaders::default());
    }
}
